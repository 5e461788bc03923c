// Swap a token of the text for another one.
// Click a token, type its replacement, and the edit joins the others in app.edits.
// A swap is written swap:side.position.id, so the replacement must be a single token.

import { make, fill } from "./dom.js";
import { button, note } from "./controls.js";
import { t, both } from "./words.js";
import { PageError } from "./source.js";

export function swapControl(app, update) {
  const side = app.pass.sides.source ? "source" : "target";
  const formArea = make("div", { class: "swap-form" });
  const chips = app.pass.sides[side].tokens.map((token, position) =>
    chip(app, { side, position, token, formArea, update }));
  return make("div", { class: "swap" }, make("h3", {}, t("swap")), note(t("swapAbout")),
    make("div", { class: "tokens" }, ...chips), formArea);
}

// A swapped token is marked as pressed; clicking it again restores the old one.
function chip(app, { side, position, token, formArea, update }) {
  const swap = () => [...app.edits].find((edit) => edit.startsWith(`swap:${side}.${position}.`));
  const mark = () => element.setAttribute("aria-pressed", String(Boolean(swap())));
  const done = () => {
    fill(formArea);
    mark();
    update();
  };
  const press = () => {
    if (app.edits.delete(swap())) return done();
    const form = swapForm(app, { side, position, token }, done);
    fill(formArea, form);
    return form.elements.token.focus();
  };
  const element = button(token, press, { class: "token", "data-swap": position });
  mark();
  return element;
}

function swapForm(app, { side, position, token }, done) {
  const field = make("input", { type: "text", name: "token", size: 12, "aria-label": t("swap"), autocomplete: "off" });
  const send = async () => {
    const { tokens } = await app.source.send("tokens", { text: field.value, side });
    if (tokens.length !== 1) throw new PageError(both("swapOne", field.value, tokens.length));
    app.edits.add(`swap:${side}.${position}.${tokens[0].id}`);
    done();
  };
  const onsubmit = (event) => {
    event.preventDefault();
    app.guard(send());
  };
  return make("form", { class: "row", onsubmit },
    make("span", { class: "soft small" }, t("swapWith", token)), field, make("button", {}, t("swapDo")));
}
