// Beam search tree: all candidates of a search and its finished hypotheses.
// Each column is one more token, sorted by log-probability; the best path is the top row.
// Beam size and length penalty can be changed on the live page.

import { make, draw, fill, formatNumber } from "./dom.js";
import { slider } from "./controls.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { requestName, latestOnly } from "./source.js";
import { shorten } from "./heatmap.js";

const COLUMN = 138, ROW = 28, BOX_WIDTH = 118, BOX_HEIGHT = 24;  // CSS pixels
const DEFAULTS = { alpha: 0.6, size: 4 };

export function beamCard(app) {
  app.beams ??= { ...DEFAULTS };
  const result = make("div", { class: "card-content" }), latest = latestOnly();
  const show = async () => {
    const search = await latest(app.source.json(nameOf(app)));
    if (search) fill(result, ...content(search));
  };
  const load = async () => {
    await show();
    return app.source.offline ? result : [controls(app, show), result];
  };
  return card(app, "beam", t("beam"), t("beamAbout"), load);
}

// Default values are left out of the request.
function nameOf({ pass, beams }) {
  const changed = Object.entries(beams).filter(([key, value]) => value !== DEFAULTS[key]);
  return requestName(`pass/${pass.id}/beam`, Object.fromEntries(changed));
}

function controls(app, show) {
  const control = (name, label, min, max, step) => slider(label, { name, min, max, step, value: app.beams[name] },
    (value) => { app.beams[name] = value; }, { onchange: () => app.guard(show()) });
  return make("div", { class: "cards" },
    control("size", t("beamSize"), 1, 8, 1), control("alpha", t("lengthPenalty"), 0, 2, 0.1));
}

function content({ nodes, hypotheses }) {
  const texts = hypotheses.map(({ text, score }) =>
    make("li", { "data-value": score }, make("span", {}, text), make("span", {}, formatNumber(score))));
  return [make("div", { class: "beam" }, tree(nodes)),
    make("h3", {}, t("hypotheses")), make("ol", { class: "list hypotheses" }, ...texts)];
}

function tree(nodes) {
  const rows = layOut(nodes);
  const width = (Math.max(...nodes.map(({ depth }) => depth)) + 1) * COLUMN, height = rows * ROW + 8;
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const branches = nodes.filter(({ parent }) => parent !== null).map((node) => branch(byId.get(node.parent), node));
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("beam") },
    ...branches, ...nodes.map(box));
  Object.assign(picture.style, { width: `${width}px`, height: `${height}px` });
  return picture;
}

// Assign a row to each node: the best path first, then by the rows of the parents. Returns the number of rows.
function layOut(nodes) {
  const rows = new Map([[null, 0]]), columns = Object.values(Object.groupBy(nodes, ({ depth }) => depth));
  const order = (a, b) =>
    b.on_best_path - a.on_best_path || rows.get(a.parent) - rows.get(b.parent) || b.log_prob - a.log_prob;
  for (const column of columns) {
    column.sort(order).forEach((node, row) => {
      node.row = row;
      rows.set(node.id, row);
    });
  }
  return Math.max(...columns.map(({ length }) => length));
}

function branch(from, to) {
  const [x1, y1, x2, y2] = [from.depth * COLUMN + BOX_WIDTH, middleOf(from), to.depth * COLUMN + 2, middleOf(to)];
  const path = `M${x1} ${y1} C${x1 + 14} ${y1}, ${x2 - 14} ${y2}, ${x2} ${y2}`;
  return draw("path", { class: to.on_best_path ? "best" : to.state, d: path });
}

function middleOf({ row }) {
  return 4 + row * ROW + BOX_HEIGHT / 2;
}

function box({ id, token, depth, row, token_log_prob: own, log_prob: sum, score, state, on_best_path: best, parent }) {
  const about = `${token}  log p ${formatNumber(own)}, Σ ${formatNumber(sum)}, ${t("score")} ${formatNumber(score)}`;
  const position = `translate(${depth * COLUMN + 2} ${4 + row * ROW})`;
  const label = parent === null ? "" : formatNumber(Number(own.toFixed(2)));
  const kind = `node ${state}${best ? " best" : ""}`;
  return draw("g", { class: kind, transform: position, "data-node": id, "data-value": sum },
    draw("title", {}, about),
    draw("rect", { width: BOX_WIDTH, height: BOX_HEIGHT, rx: 6 }),
    draw("text", { x: 8, y: 16 }, shorten(token, 9)),
    draw("text", { x: BOX_WIDTH - 7, y: 16, "text-anchor": "end", class: "score" }, label));
}
