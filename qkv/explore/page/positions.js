// Position encodings: sinusoidal, rotary or learned.
// Some components are drawn as curves over the positions, all of them as a heat map.
// High frequencies distinguish adjacent positions, low frequencies distant ones.

import { make, draw, availableWidth } from "./dom.js";
import { t, localized } from "./words.js";
import { card } from "./card.js";
import { HeatMap } from "./heatmap.js";

const WIDTH = 640, LEFT = 96, LANE = 44, CURVES = 6;

export function positionsCard(app) {
  return card(app, "positions", t("positions"), null, () => content(app));
}

async function content(app) {
  const [about, tensor] = await Promise.all([app.source.json("positions"), app.source.tensor("positions/values")]);
  const { shape: [rows, columns], data: values } = tensor;
  const heatmap = new HeatMap();
  heatmap.show({ values, rows, columns, maxHeight: 280, about: t("positions") });
  return [make("p", { class: "about" }, localized(about.text)),
    about.formula ? make("p", { class: "formula" }, about.formula) : null,
    make("div", { class: "cards" }, curves(values, rows, columns), heatmap.element)];
}

// A few components, each in its own lane.
function curves(values, positions, components) {
  const width = availableWidth(WIDTH), lanes = Math.min(CURVES, components), height = lanes * LANE + 20;
  const drawn = Array.from({ length: lanes }, (_, lane) => {
    const component = Math.floor((lane * components) / lanes);
    const column = Float32Array.from({ length: positions }, (_, position) => values[position * components + component]);
    return curve(column, width, component, lane * LANE + LANE / 2);
  });
  const axis = draw("text", { x: width, y: height - 4, "text-anchor": "end", class: "score" }, `${t("position")} →`);
  return make("div", { class: "position-curves" },
    draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("positions") }, ...drawn, axis));
}

function curve(column, width, component, middle) {
  const amplitude = column.reduce((largest, value) => Math.max(largest, Math.abs(value)), 0) || 1;
  const points = Array.from(column, (value, position) => {
    const x = LEFT + (position / Math.max(1, column.length - 1)) * (width - LEFT - 4);
    return `${x.toFixed(1)},${(middle - (value / amplitude) * LANE * 0.42).toFixed(1)}`;
  });
  return draw("g", {}, draw("text", { x: 0, y: middle + 4, class: "score" }, `${t("component")} ${component}`),
    draw("polyline", { class: "curve", points: points.join(" ") }));
}
