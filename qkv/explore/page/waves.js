// Positions as waves.
// In: the numbers that tell the model where a token stands. Out: some components as curves, and all as a heat map.
// Fast waves tell neighbours apart, slow ones tell near from far.

import { make, draw, roomFor } from "./dom.js";
import { t, say } from "./words.js";
import { card } from "./card.js";
import { HeatMap } from "./heat.js";

const WIDE = 640, LEFT = 96, LANE = 44, CURVES = 6;

export function wavesCard(app) {
  return card("waves", t("waves"), null, content(app), "wide");
}

async function content(app) {
  const [about, numbers] = await Promise.all([app.source.json("waves"), app.source.tensor("waves/numbers")]);
  const { shape: [rows, columns], data: values } = numbers;
  const heat = new HeatMap();
  heat.show({ values, rows, columns, tallest: 280, about: t("waves") });
  return [make("p", { class: "about" }, say(about.text)),
    about.formula ? make("p", { class: "formula" }, about.formula) : null,
    make("div", { class: "try" }, curves(values, rows, columns), heat.element)];
}

// A few components, each in its own lane.
function curves(values, places, components) {
  const wide = roomFor(WIDE), lanes = Math.min(CURVES, components), height = lanes * LANE + 20;
  const drawn = Array.from({ length: lanes }, (_, lane) => {
    const component = Math.floor((lane * components) / lanes);
    const wave = Float32Array.from({ length: places }, (_, place) => values[place * components + component]);
    return curve(wave, wide, component, lane * LANE + LANE / 2);
  });
  const axis = draw("text", { x: wide, y: height - 4, "text-anchor": "end", class: "score" }, `${t("place")} →`);
  return make("div", { class: "waves" },
    draw("svg", { viewBox: `0 0 ${wide} ${height}`, role: "img", "aria-label": t("waves") }, ...drawn, axis));
}

function curve(wave, wide, component, middle) {
  const far = wave.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;
  const points = Array.from(wave, (value, place) => {
    const x = LEFT + (place / Math.max(1, wave.length - 1)) * (wide - LEFT - 4);
    return `${x.toFixed(1)},${(middle - (value / far) * LANE * 0.42).toFixed(1)}`;
  });
  return draw("g", {}, draw("text", { x: 0, y: middle + 4, class: "score" }, `${t("component")} ${component}`),
    draw("polyline", { class: "wave", points: points.join(" ") }));
}
