// The beam tree: every beginning that was kept, and the one that won.
// In: the nodes of a search. Out: a drawing from left to right, and the finished texts with their scores.
// The best child stands on its parent's line, the others below; so the winning way runs straight along the top.

import { make, draw, fill, digits } from "./dom.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { named } from "./source.js";
import { shorten } from "./heat.js";

const ACROSS = 138, DOWN = 28, BOX = 118, TALL = 24;

export function beamCard(app) {
  app.beams ??= { size: 4, alpha: 0.6 };
  const place = make("div");
  const show = async () => fill(place, ...content(await app.source.json(nameOf(app))));
  const element = card("beam", t("beam"), t("beamAbout"), show().then(() => [app.source.offline ? null : controls(app, show), place].filter(Boolean)));
  element.classList.add("wide");
  return element;
}

function nameOf({ pass, beams }) {
  const unusual = Object.entries({ alpha: [beams.alpha, 0.6], size: [beams.size, 4] }).filter(([, [value, usual]]) => value !== usual);
  return named(`pass/${pass.id}/beam`, Object.fromEntries(unusual.map(([key, [value]]) => [key, value])));
}

function controls(app, show) {
  const slider = (key, words, min, max, step) => {
    const output = make("output", {}, String(app.beams[key]));
    const input = make("input", { type: "range", name: key, min, max, step, value: app.beams[key],
      oninput: () => { output.textContent = input.value; }, onchange: () => { app.beams[key] = Number(input.value); app.guard(show()); } });
    return make("label", { class: "slider" }, make("span", {}, t(words)), input, output);
  };
  return make("div", { class: "try" }, slider("size", "beamSize", 1, 8, 1), slider("alpha", "lengthPenalty", 0, 2, 0.1));
}

function content({ nodes, hypotheses }) {
  const texts = hypotheses.map(({ text, score }) => make("li", { "data-value": score }, make("span", {}, text), make("span", {}, digits(score))));
  return [make("div", { class: "beam" }, tree(nodes)), make("h3", {}, t("hypotheses")), make("ol", { class: "list hypotheses" }, ...texts)];
}

function tree(nodes) {
  const lines = placeNodes(nodes);
  const depth = Math.max(...nodes.map((node) => node.depth));
  const [width, height] = [(depth + 1) * ACROSS, lines * DOWN + 8];
  const byNumber = new Map(nodes.map((node) => [node.id, node]));
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": t("beam") },
    ...nodes.filter(({ parent }) => parent !== null).map((node) => branch(byNumber.get(node.parent), node)), ...nodes.map(box));
  Object.assign(picture.style, { width: `${width}px`, height: `${height}px` });
  return picture;
}

// Each node gets a line: the winner first, then the better ones. Gives the number of lines.
function placeNodes(nodes) {
  const children = new Map(nodes.map(({ id }) => [id, []]));
  for (const node of nodes) if (node.parent !== null) children.get(node.parent).push(node);
  let next = 0;
  const place = (node) => {
    const below = children.get(node.id).sort((a, b) => b.wins - a.wins || b.log_prob - a.log_prob).map(place);
    node.line = below.length ? below[0] : next++;
    return node.line;
  };
  nodes.filter(({ parent }) => parent === null).forEach(place);
  return next;
}

function branch(from, to) {
  const [x1, y1, x2, y2] = [from.depth * ACROSS + BOX, middleOf(from), to.depth * ACROSS + 2, middleOf(to)];
  return draw("path", { class: to.wins ? "won" : to.state, d: `M${x1} ${y1} C${x1 + 14} ${y1}, ${x2 - 14} ${y2}, ${x2} ${y2}` });
}

function middleOf({ line }) {
  return 4 + line * DOWN + TALL / 2;
}

function box(node) {
  return draw("g", { class: `node ${node.state}${node.wins ? " wins" : ""}`, transform: `translate(${node.depth * ACROSS + 2} ${4 + node.line * DOWN})`, "data-node": node.id, "data-value": node.log_prob },
    draw("title", {}, `${node.token}  log p ${digits(node.gain)}, Σ ${digits(node.log_prob)}, ${t("score")} ${digits(node.score)}`),
    draw("rect", { width: BOX, height: TALL, rx: 6 }),
    draw("text", { x: 8, y: 16 }, shorten(node.token, 9)),
    draw("text", { x: BOX - 7, y: 16, "text-anchor": "end", class: "score" }, node.parent === null ? "" : digits(Number(node.gain.toFixed(2)))));
}
