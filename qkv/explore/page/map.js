// The embedding space: neighbours and a map.
// In: the tokens of the text and their neighbours on two axes. Out: a map; a chosen token lists what is nearest to it.
// Nearness is the cosine of the embeddings; the map can only show a part of it, and says how much.

import { make, draw, fill, roomFor } from "./dom.js";
import { note, pressable } from "./controls.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars, cosineBar, percent } from "./bars.js";
import { shorten } from "./heat.js";
import { lastOf } from "./source.js";

const WIDE = 640, HIGH = 400, EDGE = 24;
const LETTERS = { here: 13, other: 11 };  // CSS pixels

export function mapCard(app) {
  return card("map", t("map"), null, content(app, app.pass.sides.source ? "source" : "target"), "wide");
}

async function content(app, side) {
  const { points, explained } = await app.source.json(`pass/${app.pass.id}/map/${side}`);
  const list = make("div", { class: "neighbours" }), last = lastOf();
  const choose = async ({ id, token }) => {
    const near = await last(app.source.json(`neighbours/${side}/${id}`));
    if (!near) return;
    const rows = near.neighbours.map((one) => cosineBar({ ...one, name: one.token }));
    fill(list, make("h3", {}, t("neighbours", token)), bars(rows, 1));
  };
  const { ids, special } = app.pass.sides[side];
  const first = points.find(({ id }) => id === ids.find((_, at) => !special[at]));
  if (first) app.guard(choose(first));
  return [note(t("mapAbout", percent(explained[0] + explained[1]))),
    make("div", { class: "try map" }, picture(points, (point) => app.guard(choose(point))), list)];
}

// The text's own tokens come first, so that their names find room.
function picture(points, choose) {
  const wide = roomFor(WIDE), at = scaleOf(points, wide), place = placer(wide, points.map(at));
  const marks = [...points].sort((a, b) => b.here - a.here)
    .map((point) => mark(point, at(point), place(point, at(point)), choose));
  return draw("svg", { viewBox: `0 0 ${wide} ${HIGH}`, role: "group", "aria-label": t("map") }, ...marks);
}

function scaleOf(points, wide) {
  const along = (key, size) => {
    const values = points.map((point) => point[key]);
    const low = Math.min(...values), range = Math.max(...values) - low || 1;
    return (point) => EDGE + ((point[key] - low) / range) * (size - 2 * EDGE);
  };
  const [x, y] = [along("x", wide), along("y", HIGH)];
  return (point) => [x(point), HIGH - y(point)];
}

// place(point, [x, y]) -> [left, base line] of its name: right of the point, left of it, above or below, wherever it
// covers no other name and no point; null where there is no room. A token of the text may cover points.
function placer(wide, places) {
  const pen = new OffscreenCanvas(1, 1).getContext("2d"), names = [];
  const circles = places.map(([x, y]) => [x - 4, y - 4, x + 4, y + 4]);  // left, top, right, bottom
  return ({ token, here }, [x, y]) => {
    const size = LETTERS[here ? "here" : "other"];
    pen.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
    const width = pen.measureText(named(token)).width, half = width / 2;
    const tries = [[x + 7, y + 4], [x - 7 - width, y + 4], [x - half, y - 8], [x - half, y + 7 + size]];
    const boxes = tries.map(([left, base]) => [left, base - size, left + width, base + 2]);
    const free = (taken) => boxes.findIndex((box) =>
      box[0] >= 0 && box[2] <= wide && taken.every((one) => apart(one, box)));
    const quiet = free([...circles, ...names]), found = quiet < 0 && here ? free(names) : quiet;
    if (found < 0) return null;
    names.push(boxes[found]);
    return tries[found];
  };
}

function apart([left, top, right, bottom], [left2, top2, right2, bottom2]) {
  return right <= left2 || right2 <= left || bottom <= top2 || bottom2 <= top;
}

function named(token) {
  return shorten(token, 12);
}

function mark(point, [x, y], place, choose) {
  const { id, token, here } = point;
  const name = place && draw("text", { x: place[0].toFixed(1), y: place[1].toFixed(1) }, named(token));
  return draw("g", { class: here ? "point mine" : "point other", "data-id": id, ...pressable(() => choose(point)),
    tabindex: here ? 0 : -1 },
    draw("title", {}, token),
    draw("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: here ? 5 : 3 }), name);
}
