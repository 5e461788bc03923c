// The embedding space: neighbours and a map.
// In: the tokens of the text and their neighbours on two axes. Out: a map; a chosen token lists what is nearest to it.
// Nearness is the cosine of the embeddings; the map can only show a part of it, and says how much.

import { make, draw, fill } from "./dom.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars, percent } from "./bars.js";
import { shorten } from "./heat.js";

const WIDE = 640, HIGH = 400, EDGE = 34;

export function mapCard(app) {
  const side = app.pass.sides.source ? "source" : "target";
  const element = card("map", t("map"), null, content(app, side));
  element.classList.add("wide");
  return element;
}

async function content(app, side) {
  const { points, explained } = await app.source.json(`pass/${app.pass.id}/map/${side}`);
  const list = make("div", { class: "neighbours" });
  const choose = async ({ id, token }) => {
    const { neighbours } = await app.source.json(`neighbours/${side}/${id}`);
    fill(list, make("h3", {}, t("neighbours", token)), bars(neighbours.map((near) => ({ name: near.token, share: Math.max(0, near.cosine), id: near.id })), 1));
  };
  const mine = points.filter(({ here }) => here);
  if (mine.length) app.guard(choose(mine[0]));
  return [make("p", { class: "soft small" }, t("mapAbout", percent(explained[0] + explained[1]))),
    make("div", { class: "try map" }, picture(points, (point) => app.guard(choose(point))), list)];
}

function picture(points, choose) {
  const at = scaleOf(points), taken = [];
  const marks = [...points].sort((a, b) => b.here - a.here).map((point) => mark(point, at(point), free(taken, at(point)), choose));
  return draw("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "group", "aria-label": t("map") }, ...marks);
}

function scaleOf(points) {
  const range = (key) => [Math.min(...points.map((point) => point[key])), Math.max(...points.map((point) => point[key]))];
  const fit = (value, [low, high], size) => EDGE + ((value - low) / (high - low || 1)) * (size - 2 * EDGE);
  const [x, y] = [range("x"), range("y")];
  return (point) => [fit(point.x, x, WIDE), HIGH - fit(point.y, y, HIGH)];
}

// Whether a name still has room here; those of the text itself are placed first.
function free(taken, [x, y]) {
  const room = taken.every(([a, b]) => Math.abs(a - x) > 62 || Math.abs(b - y) > 13);
  if (room) taken.push([x, y]);
  return room;
}

function mark(point, [x, y], named, choose) {
  const press = (event) => event.key === "Enter" && choose(point);
  return draw("g", { class: point.here ? "point mine" : "point other", tabindex: point.here ? 0 : -1, role: "button", "aria-label": point.token, "data-id": point.id, onclick: () => choose(point), onkeydown: press },
    draw("title", {}, point.token),
    draw("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: point.here ? 5 : 3 }),
    named || point.here ? draw("text", { x: (x + 7).toFixed(1), y: (y + 4).toFixed(1) }, shorten(point.token, 12)) : null);
}
