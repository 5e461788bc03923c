// The beam tree: every beginning that was kept, and the one that won.
// In: the nodes of a search. Out: a drawing from left to right, and the finished texts with their scores.
// Every column is one more token, the better ones higher; the winning way runs straight along the top.

import { make, draw, fill, digits } from "./dom.js";
import { slider } from "./controls.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { named, lastOf } from "./source.js";
import { shorten } from "./heat.js";

const ACROSS = 138, DOWN = 28, BOX = 118, TALL = 24;
const USUAL = { alpha: 0.6, size: 4 };

export function beamCard(app) {
  app.beams ??= { ...USUAL };
  const place = make("div", { class: "card-content" }), last = lastOf();
  const show = async () => {
    const search = await last(app.source.json(nameOf(app)));
    if (search) fill(place, ...content(search));
  };
  const whole = async () => {
    await show();
    return app.source.offline ? place : [controls(app, show), place];
  };
  return card("beam", t("beam"), t("beamAbout"), whole(), "wide");
}

// What has its usual value is left out of the name.
function nameOf({ pass, beams }) {
  const unusual = Object.entries(beams).filter(([key, value]) => value !== USUAL[key]);
  return named(`pass/${pass.id}/beam`, Object.fromEntries(unusual));
}

function controls(app, show) {
  const one = (name, label, min, max, step) => slider(label, { name, min, max, step, value: app.beams[name] },
    (value) => { app.beams[name] = value; }, { onchange: () => app.guard(show()) });
  return make("div", { class: "try" },
    one("size", t("beamSize"), 1, 8, 1), one("alpha", t("lengthPenalty"), 0, 2, 0.1));
}

function content({ nodes, hypotheses }) {
  const texts = hypotheses.map(({ text, score }) =>
    make("li", { "data-value": score }, make("span", {}, text), make("span", {}, digits(score))));
  return [make("div", { class: "beam" }, tree(nodes)),
    make("h3", {}, t("hypotheses")), make("ol", { class: "list hypotheses" }, ...texts)];
}

function tree(nodes) {
  const lines = placeNodes(nodes);
  const width = (Math.max(...nodes.map(({ depth }) => depth)) + 1) * ACROSS, height = lines * DOWN + 8;
  const byNumber = new Map(nodes.map((node) => [node.id, node]));
  const branches = nodes.filter(({ parent }) => parent !== null).map((node) => branch(byNumber.get(node.parent), node));
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("beam") },
    ...branches, ...nodes.map(box));
  Object.assign(picture.style, { width: `${width}px`, height: `${height}px` });
  return picture;
}

// Each node gets a line in its column: the winner first, then by the lines of the parents. Gives the number of lines.
function placeNodes(nodes) {
  const lines = new Map([[null, 0]]), columns = Object.values(Object.groupBy(nodes, ({ depth }) => depth));
  const above = (a, b) => b.wins - a.wins || lines.get(a.parent) - lines.get(b.parent) || b.log_prob - a.log_prob;
  for (const column of columns) {
    column.sort(above).forEach((node, line) => {
      node.line = line;
      lines.set(node.id, line);
    });
  }
  return Math.max(...columns.map(({ length }) => length));
}

function branch(from, to) {
  const [x1, y1, x2, y2] = [from.depth * ACROSS + BOX, middleOf(from), to.depth * ACROSS + 2, middleOf(to)];
  const path = `M${x1} ${y1} C${x1 + 14} ${y1}, ${x2 - 14} ${y2}, ${x2} ${y2}`;
  return draw("path", { class: to.wins ? "won" : to.state, d: path });
}

function middleOf({ line }) {
  return 4 + line * DOWN + TALL / 2;
}

function box({ id, token, depth, line, gain, log_prob: sum, score, state, wins, parent }) {
  const about = `${token}  log p ${digits(gain)}, Σ ${digits(sum)}, ${t("score")} ${digits(score)}`;
  const place = `translate(${depth * ACROSS + 2} ${4 + line * DOWN})`;
  const gained = parent === null ? "" : digits(Number(gain.toFixed(2)));
  const kind = `node ${state}${wins ? " wins" : ""}`;
  return draw("g", { class: kind, transform: place, "data-node": id, "data-value": sum },
    draw("title", {}, about),
    draw("rect", { width: BOX, height: TALL, rx: 6 }),
    draw("text", { x: 8, y: 16 }, shorten(token, 9)),
    draw("text", { x: BOX - 7, y: 16, "text-anchor": "end", class: "score" }, gained));
}
