// Positions as waves.
// In: the numbers that tell the model where a token stands. Out: some components as curves over the places, and all as a heat map.
// Fast waves tell neighbours apart, slow ones tell near from far.

import { make, draw } from "./dom.js";
import { t, say } from "./words.js";
import { card } from "./card.js";
import { HeatMap } from "./heat.js";

const WIDE = 640, LANE = 44, CURVES = 6;

export function wavesCard(app) {
  const element = card("waves", t("waves"), null, content(app));
  element.classList.add("wide");
  return element;
}

async function content(app) {
  const [about, { shape: [places, components], data }] = await Promise.all([app.source.json("waves"), app.source.tensor("waves/numbers")]);
  const heat = new HeatMap();
  requestAnimationFrame(() => requestAnimationFrame(() => heat.show({ values: data, rows: places, columns: components, kind: "signed", tallest: 280 })));
  return [make("p", { class: "about" }, say(about.text)), about.formula ? make("p", { class: "formula" }, about.formula) : null,
    make("div", { class: "try" }, curves(data, places, components), heat.element)].filter(Boolean);
}

function curves(data, places, components) {
  const shown = Array.from({ length: Math.min(CURVES, components) }, (_, i) => Math.floor((i * components) / CURVES));
  return make("div", { class: "waves" }, draw("svg", { viewBox: `0 0 ${WIDE} ${shown.length * LANE + 20}`, role: "img", "aria-label": t("waves") },
    ...shown.flatMap((component, lane) => curve(data, places, components, component, lane)),
    draw("text", { x: WIDE, y: shown.length * LANE + 16, "text-anchor": "end", class: "score" }, `${t("place")} →`)));
}

function curve(data, places, components, component, lane) {
  const middle = lane * LANE + LANE / 2;
  let far = 0;
  for (let place = 0; place < places; place++) far = Math.max(far, Math.abs(data[place * components + component]));
  const points = Array.from({ length: places }, (_, place) =>
    `${(104 + (place / Math.max(1, places - 1)) * (WIDE - 108)).toFixed(1)},${(middle - (data[place * components + component] / (far || 1)) * LANE * 0.42).toFixed(1)}`);
  return [draw("text", { x: 0, y: middle + 4, class: "score" }, `${t("component")} ${component}`), draw("polyline", { class: "wave", points: points.join(" ") })];
}
