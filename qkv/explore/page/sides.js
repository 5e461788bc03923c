// The two sides of a pass and their names.
// In: a pass. Out: tokens and words of the source and the target, and a row of chips to choose a position.
// Row i of the target has read token i and writes predicted[i].

import { make, scrollWithin } from "./dom.js";
import { t } from "./words.js";

export function tokensOf(pass, side) {
  return pass.sides[side]?.tokens ?? null;
}

// What each row of the target writes; a very large model tells it only when asked, then it is the token read next.
export function writtenTokens(pass) {
  const { predicted, tokens } = pass.sides.target;
  return predicted ?? [...tokens.slice(1), "…"];
}

// Names of the rows of an attention: those that look. In cross-attention, the words being written.
export function rowNames(pass, which) {
  return which === "cross" ? writtenTokens(pass) : tokensOf(pass, sideOf(pass, which));
}

function sideOf(pass, which) {
  return which === "encoder" ? "source" : "target";
}

// What a position is called where it is chosen: the word it writes (translator) or the token it has read (generator).
export function positionName(pass, position) {
  return pass.family === "translator" ? writtenTokens(pass)[position] : (pass.sides.target ?? pass.sides.source).tokens[position];
}

// A row of tokens, one of them pressed.
export function positionChips(app, onchoose) {
  const { pass } = app;
  const chips = Array.from({ length: pass.positions }, (_, position) => make("button", {
    type: "button", class: "token", "data-position": position, "aria-pressed": String(position === app.position),
    onclick: (event) => {
      app.position = position;
      for (const chip of event.currentTarget.parentNode.children) chip.setAttribute("aria-pressed", String(chip === event.currentTarget));
      onchoose(position);
    },
  }, positionName(pass, position)));
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
export function tokenRow(side) {
  return make("div", { class: "tokens" }, ...side.tokens.map((token, at) => make("span", {
    class: "token", "data-id": side.ids[at], title: side.partial?.[at] ? t("partial") : null,
  }, token, make("span", { class: "soft" }, String(side.ids[at])))));
}

// Whole words that look, as groups of rows. In cross-attention a row writes the token after the one it has read.
export function rowWords(pass, which) {
  if (which !== "cross") return pass.sides[sideOf(pass, which)].words;
  const { words } = pass.sides.target, predicted = writtenTokens(pass);
  const written = words.slice(1).map(({ text, tokens }) => ({ text, tokens: tokens.map((at) => at - 1) }));
  return [...written, { text: predicted.at(-1), tokens: [predicted.length - 1] }];
}

// The side that is looked at.
export function columnSide(which) {
  return which === "decoder" ? "target" : "source";
}
