// The source and target side of a pass: names of tokens, words, rows and columns.
// Row i of the target has read token i and predicts predicted[i].
// Also the chips to select a position and the row of tokens with their ids.

import { make, scrollWithin } from "./dom.js";
import { button } from "./controls.js";
import { t } from "./words.js";

export function tokensOf(pass, side) {
  return pass.sides[side]?.tokens ?? null;
}

// The predicted token of each target row; where predictions are too costly, the next token of the text.
export function predictedTokens(pass) {
  const { predicted, tokens } = pass.sides.target;
  return predicted ?? [...tokens.slice(1), "…"];
}

// The side of the queries (rows) and the side of the keys (columns).
function rowSide(kind) {
  return kind === "encoder" ? "source" : "target";
}

export function columnSide(kind) {
  return kind === "decoder" ? "target" : "source";
}

// Names of the rows: the queries; in cross-attention the predicted tokens.
export function rowNames(pass, kind) {
  return kind === "cross" ? predictedTokens(pass) : tokensOf(pass, rowSide(kind));
}

// Words as groups of rows. In cross-attention a row predicts the token after the one it has read.
export function rowWords(pass, kind) {
  if (kind !== "cross") return pass.sides[rowSide(kind)].words;
  const tokens = predictedTokens(pass), last = tokens.length - 1;
  const words = pass.sides.target.words.slice(1);
  return [...words.map((word) => ({ text: word.text, tokens: word.tokens.map((token) => token - 1) })),
    { text: tokens[last], tokens: [last] }];
}

// The name of a position: the token it predicts (encoder-decoder) or the token it has read.
export function positionName(pass, position) {
  if (pass.family === "translator") return predictedTokens(pass)[position];
  return (pass.sides.target ?? pass.sides.source).tokens[position];
}

// A row of tokens, one of which is selected.
export function positionChips(app, onselect) {
  const { pass } = app;
  const press = (position, { currentTarget: chip }) => {
    app.position = position;
    for (const other of chip.parentNode.children) other.setAttribute("aria-pressed", String(other === chip));
    onselect(position);
  };
  const chips = Array.from({ length: pass.positions }, (_, position) =>
    button(positionName(pass, position), (event) => press(position, event), {
      class: "token", "data-position": position, "aria-pressed": String(position === app.position) }));
  return make("div", { class: "position-choice" },
    make("span", { class: "soft small" }, t(pass.family === "translator" ? "chooseWord" : "choosePosition")),
    make("div", { class: "tokens" }, ...chips));
}

// Scroll a long row to the selected token.
export function revealPressed(chips) {
  const pressed = chips.querySelector("[aria-pressed=true]");
  scrollWithin(pressed.parentNode, pressed);
}

// Tokens with their ids.
export function tokenRow({ tokens, ids, partial }) {
  const chips = tokens.map((token, index) =>
    make("span", { class: "token", "data-id": ids[index], title: partial[index] ? t("partial") : null },
      token, make("span", { class: "soft" }, String(ids[index]))));
  return make("div", { class: "tokens" }, ...chips);
}
