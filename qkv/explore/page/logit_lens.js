// Logit lens: the most probable tokens of each layer's residual stream, through the final norm and lm_head.
// A table with a row per layer, for the selected position.
// The color intensity of a cell is its probability.

import { make } from "./dom.js";
import { t, localized } from "./words.js";
import { card } from "./card.js";
import { percent } from "./bars.js";

export function logitLensCard(app) {
  const load = async () => table(await app.source.json(`pass/${app.pass.id}/logit_lens/${app.position}`));
  return card(app, "logit-lens", t("logitLens"), t("logitLensAbout"), load);
}

// The last layer is the first row.
function table({ layers }) {
  const lines = layers.map(({ name, title, tokens }) =>
    make("tr", { "data-layer": name }, make("th", { scope: "row" }, localized(title)), ...tokens.map(cell)));
  return make("div", { class: "table-scroll" }, make("table", {}, ...lines.reverse()));
}

function cell({ id, token, p }) {
  const element = make("td", { "data-id": id, "data-value": p }, token,
    make("span", { class: "soft" }, ` ${percent(p)}`));
  element.style.backgroundColor = `color-mix(in srgb, var(--accent) ${Math.round(45 * p)}%, transparent)`;
  return element;
}
