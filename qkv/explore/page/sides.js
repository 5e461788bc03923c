// The two sides of a pass and their names.
// In: a pass. Out: tokens and words of the source and the target, and a row of chips to choose a position.
// Row i of the target has read token i and writes predicted[i].

import { make, scrollWithin } from "./dom.js";
import { button } from "./controls.js";
import { t } from "./words.js";

export function tokensOf(pass, side) {
  return pass.sides[side]?.tokens ?? null;
}

// What each row of the target writes; a very large model tells it only when asked, then it is the token read next.
export function writtenTokens(pass) {
  const { predicted, tokens } = pass.sides.target;
  return predicted ?? [...tokens.slice(1), "…"];
}

// The side that looks, and the side that is looked at.
function rowSide(which) {
  return which === "encoder" ? "source" : "target";
}

export function columnSide(which) {
  return which === "decoder" ? "target" : "source";
}

// Names of the rows of an attention: those that look. In cross-attention, the words being written.
export function rowNames(pass, which) {
  return which === "cross" ? writtenTokens(pass) : tokensOf(pass, rowSide(which));
}

// Whole words that look, as groups of rows. In cross-attention a row writes the token after the one it has read.
export function rowWords(pass, which) {
  if (which !== "cross") return pass.sides[rowSide(which)].words;
  const tokens = writtenTokens(pass), last = tokens.length - 1;
  const written = pass.sides.target.words.slice(1);
  return [...written.map((word) => ({ text: word.text, tokens: word.tokens.map((at) => at - 1) })),
    { text: tokens[last], tokens: [last] }];
}

// What a position is called where it is chosen: the word it writes (translator) or the token it has read.
export function positionName(pass, position) {
  if (pass.family === "translator") return writtenTokens(pass)[position];
  return (pass.sides.target ?? pass.sides.source).tokens[position];
}

// A row of tokens, one of them pressed.
export function positionChips(app, onchoose) {
  const { pass } = app;
  const press = (position, { currentTarget: chip }) => {
    app.position = position;
    for (const one of chip.parentNode.children) one.setAttribute("aria-pressed", String(one === chip));
    onchoose(position);
  };
  const chips = Array.from({ length: pass.positions }, (_, position) =>
    button(positionName(pass, position), (event) => press(position, event), {
      class: "token", "data-position": position, "aria-pressed": String(position === app.position) }));
  return make("div", { class: "word-choice" },
    make("span", { class: "soft small" }, t(pass.family === "translator" ? "chooseWord" : "choosePosition")),
    make("div", { class: "tokens" }, ...chips));
}

// In a long row the pressed token may be out of sight.
export function revealPressed(chips) {
  const pressed = chips.querySelector("[aria-pressed=true]");
  scrollWithin(pressed.parentNode, pressed);
}

// Tokens with their numbers, as the model reads them.
export function tokenRow({ tokens, ids, partial }) {
  const chips = tokens.map((token, at) =>
    make("span", { class: "token", "data-id": ids[at], title: partial[at] ? t("partial") : null },
      token, make("span", { class: "soft" }, String(ids[at]))));
  return make("div", { class: "tokens" }, ...chips);
}
