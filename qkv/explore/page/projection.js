// Embedding space: a PCA projection of the text's tokens and their nearest neighbors.
// Selecting a token lists its nearest neighbors by cosine similarity.
// The note gives the fraction of the variance that the two components explain.

import { make, draw, fill, availableWidth } from "./dom.js";
import { note, pressable } from "./controls.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars, cosineBar, percent } from "./bars.js";
import { shorten } from "./heatmap.js";
import { latestOnly } from "./source.js";

const WIDTH = 640, HEIGHT = 400, MARGIN = 24;  // CSS pixels
const FONT_SIZE = { inText: 13, neighbor: 11 };
const MAX_LABEL = 12;  // characters

export function projectionCard(app) {
  const side = app.pass.sides.source ? "source" : "target";
  return card(app, "projection", t("projection"), null, () => content(app, side));
}

async function content(app, side) {
  const { points, explained } = await app.source.json(`pass/${app.pass.id}/projection/${side}`);
  const list = make("div", { class: "neighbors" }), latest = latestOnly();
  const select = async ({ id, token }) => {
    const near = await latest(app.source.json(`neighbors/${side}/${id}`));
    if (!near) return;
    const rows = near.neighbors.map((neighbor) => cosineBar({ ...neighbor, name: neighbor.token }));
    fill(list, make("h3", {}, t("neighbors", token)), bars(rows, 1));
  };
  const { ids, special } = app.pass.sides[side];
  const first = points.find(({ id }) => id === ids.find((_, index) => !special[index]));
  if (first) app.guard(select(first));
  return [note(t("projectionAbout", percent(explained[0] + explained[1]))),
    make("div", { class: "cards projection" }, picture(points, (point) => app.guard(select(point))), list)];
}

// Labels of the text's own tokens are placed first.
function picture(points, onselect) {
  const width = availableWidth(WIDTH), locate = scaleOf(points, width);
  const placeLabel = labelPlacer(width, points.map(locate));
  const marks = [...points].sort((a, b) => b.in_text - a.in_text)
    .map((point) => mark(point, locate(point), placeLabel(point, locate(point)), onselect));
  return draw("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "group", "aria-label": t("projection") }, ...marks);
}

function scaleOf(points, width) {
  const along = (key, size) => {
    const values = points.map((point) => point[key]);
    const low = Math.min(...values), range = Math.max(...values) - low || 1;
    return (point) => MARGIN + ((point[key] - low) / range) * (size - 2 * MARGIN);
  };
  const [x, y] = [along("x", width), along("y", HEIGHT)];
  return (point) => [x(point), HEIGHT - y(point)];
}

// placeLabel(point, [x, y]) -> [left, baseline] of its label: right, left, above or below the point, where it overlaps
// no other label and no point; null if there is no such position. Labels of the text's tokens may overlap points.
function labelPlacer(width, centers) {
  const pen = new OffscreenCanvas(1, 1).getContext("2d"), labels = [];
  const circles = centers.map(([x, y]) => [x - 4, y - 4, x + 4, y + 4]);  // left, top, right, bottom
  return ({ token, in_text: inText }, [x, y]) => {
    const size = FONT_SIZE[inText ? "inText" : "neighbor"];
    pen.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
    const length = pen.measureText(shorten(token, MAX_LABEL)).width, half = length / 2;
    const options = [[x + 7, y + 4], [x - 7 - length, y + 4], [x - half, y - 8], [x - half, y + 7 + size]];
    const boxes = options.map(([left, base]) => [left, base - size, left + length, base + 2]);
    const free = (taken) => boxes.findIndex((box) =>
      box[0] >= 0 && box[2] <= width && taken.every((other) => disjoint(other, box)));
    const clear = free([...circles, ...labels]), found = clear < 0 && inText ? free(labels) : clear;
    if (found < 0) return null;
    labels.push(boxes[found]);
    return options[found];
  };
}

function disjoint([left, top, right, bottom], [left2, top2, right2, bottom2]) {
  return right <= left2 || right2 <= left || bottom <= top2 || bottom2 <= top;
}

function mark(point, [x, y], label, onselect) {
  const { id, token, in_text: inText } = point;
  const text = label && draw("text", { x: label[0].toFixed(1), y: label[1].toFixed(1) }, shorten(token, MAX_LABEL));
  const attributes = { class: inText ? "point in-text" : "point neighbor", "data-id": id };
  return draw("g", { ...attributes, ...pressable(() => onselect(point)), tabindex: inText ? 0 : -1 },
    draw("title", {}, token),
    draw("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: inText ? 5 : 3 }), text);
}
