// Swap a token: another one in its place.
// In: the tokens of the text. Out: a row of tokens; one is clicked, a new one typed, and the edit joins the others.
// A swap is written swap:side.position.id, so what is typed must be a single token.

import { make, fill } from "./dom.js";
import { button, note } from "./controls.js";
import { t, both } from "./words.js";
import { Trouble } from "./source.js";

export function swapper(app, again) {
  const side = app.pass.sides.source ? "source" : "target";
  const place = make("div", { class: "swap-place" });
  const chips = app.pass.sides[side].tokens.map((token, at) => chip(app, { side, at, token, place, again }));
  return make("div", { class: "swap" }, make("h3", {}, t("swap")), note(t("swapAbout")),
    make("div", { class: "tokens" }, ...chips), place);
}

// A swapped token is pressed; clicking it again puts the old one back.
function chip(app, { side, at, token, place, again }) {
  const swap = () => [...app.edits].find((one) => one.startsWith(`swap:${side}.${at}.`));
  const mark = () => element.setAttribute("aria-pressed", String(Boolean(swap())));
  const done = () => {
    fill(place);
    mark();
    again();
  };
  const press = () => {
    if (app.edits.delete(swap())) return done();
    const form = swapForm(app, { side, at, token }, done);
    fill(place, form);
    return form.elements.token.focus();
  };
  const element = button(token, press, { class: "token", "data-swap": at });
  mark();
  return element;
}

function swapForm(app, { side, at, token }, done) {
  const field = make("input", { type: "text", name: "token", size: 12, "aria-label": t("swap"), autocomplete: "off" });
  const send = async () => {
    const { tokens } = await app.source.send("tokens", { text: field.value, side });
    if (tokens.length !== 1) throw new Trouble(both("swapOne", field.value, tokens.length));
    app.edits.add(`swap:${side}.${at}.${tokens[0].id}`);
    done();
  };
  const onsubmit = (event) => {
    event.preventDefault();
    app.guard(send());
  };
  return make("form", { class: "row", onsubmit },
    make("span", { class: "soft small" }, t("swapWith", token)), field, make("button", {}, t("swapDo")));
}
