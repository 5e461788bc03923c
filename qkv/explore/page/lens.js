// The logit lens: what each layer would say if it were the last.
// In: the lens of the chosen position. Out: a table, a row for each layer, its likeliest tokens with their chances.
// The deeper the colour, the surer the layer.

import { make } from "./dom.js";
import { t, say } from "./words.js";
import { card } from "./card.js";
import { percent } from "./bars.js";

export function lensCard(app) {
  const arriving = app.source.json(`pass/${app.pass.id}/lens/${app.position}`);
  return card("lens", t("lens"), t("lensAbout"), arriving.then(table));
}

// The last layer stands on top.
function table({ layers }) {
  const lines = layers.map(({ name, title, tokens }) =>
    make("tr", { "data-layer": name }, make("th", { scope: "row" }, say(title)), ...tokens.map(cell)));
  return make("div", { class: "lens" }, make("table", {}, ...lines.reverse()));
}

function cell({ id, token, p }) {
  const box = make("td", { "data-id": id, "data-value": p }, token, make("span", { class: "soft" }, ` ${percent(p)}`));
  box.style.backgroundColor = `color-mix(in srgb, var(--accent) ${Math.round(45 * p)}%, transparent)`;
  return box;
}
