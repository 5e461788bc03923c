// The embedding space: neighbours and a map.
// In: the tokens of the text and their neighbours on two axes. Out: a map; a chosen token lists what is nearest to it.
// Nearness is the cosine of the embeddings; the map can only show a part of it, and says how much.

import { make, draw, fill } from "./dom.js";
import { note } from "./controls.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars, cosineBar, percent } from "./bars.js";
import { shorten } from "./heat.js";

const WIDE = 640, HIGH = 400, EDGE = 24, NAME = 60;  // NAME: room for the words at the right

export function mapCard(app) {
  return card("map", t("map"), null, content(app, app.pass.sides.source ? "source" : "target"), "wide");
}

async function content(app, side) {
  const { points, explained } = await app.source.json(`pass/${app.pass.id}/map/${side}`);
  const list = make("div", { class: "neighbours" });
  const choose = async ({ id, token }) => {
    const { neighbours } = await app.source.json(`neighbours/${side}/${id}`);
    const rows = neighbours.map((near) => cosineBar({ ...near, name: near.token }));
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
  const at = scaleOf(points), taken = [];
  const marks = [...points].sort((a, b) => b.here - a.here)
    .map((point) => mark(point, at(point), free(taken, at(point)) || point.here, choose));
  return draw("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "group", "aria-label": t("map") }, ...marks);
}

function scaleOf(points) {
  const along = (key, size) => {
    const values = points.map((point) => point[key]);
    const low = Math.min(...values), wide = Math.max(...values) - low || 1;
    return (point) => EDGE + ((point[key] - low) / wide) * (size - 2 * EDGE);
  };
  const [x, y] = [along("x", WIDE - NAME), along("y", HIGH)];
  return (point) => [x(point), HIGH - y(point)];
}

// Whether a name still has room here.
function free(taken, [x, y]) {
  const room = taken.every(([a, b]) => Math.abs(a - x) > 62 || Math.abs(b - y) > 13);
  if (room) taken.push([x, y]);
  return room;
}

function mark(point, [x, y], named, choose) {
  const { id, token, here } = point;
  const onkeydown = (event) => event.key === "Enter" && choose(point);
  const pressed = { role: "button", "aria-label": token, onclick: () => choose(point), onkeydown };
  return draw("g", { class: here ? "point mine" : "point other", tabindex: here ? 0 : -1, "data-id": id, ...pressed },
    draw("title", {}, token),
    draw("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: here ? 5 : 3 }),
    named ? draw("text", { x: (x + 7).toFixed(1), y: (y + 4).toFixed(1) }, shorten(token, 12)) : null);
}
