// Swap a token: another one in its place.
// In: the tokens of the text. Out: a row of tokens; one is clicked, a new one typed, and the edit joins the others.
// A swap is written swap:side.position.id, so what is typed must be a single token.

import { make, fill } from "./dom.js";
import { t, both } from "./words.js";
import { Trouble } from "./source.js";

export function swapper(app, again) {
  const side = app.pass.sides.source ? "source" : "target";
  const place = make("div", { class: "swap-place" });
  const chips = app.pass.sides[side].tokens.map((token, at) => make("button", {
    type: "button", class: "token", "data-swap": at, "aria-pressed": String(Boolean(swapAt(app, side, at))), onclick: (event) => edit(event.currentTarget, at),
  }, token));
  const edit = (chip, at) => {
    if (removeSwap(app, side, at)) return again(chip.setAttribute("aria-pressed", "false"));
    const form = swapForm(app, side, at, () => { chip.setAttribute("aria-pressed", "true"); fill(place); again(); });
    fill(place, form);
    return form.elements.token.focus();
  };
  return make("div", { class: "swap" }, make("h3", {}, t("swap")), make("p", { class: "soft small" }, t("swapAbout")), make("div", { class: "tokens" }, ...chips), place);
}

function swapAt(app, side, at) {
  return [...app.edits].find((one) => one.startsWith(`swap:${side}.${at}.`));
}

function removeSwap(app, side, at) {
  return app.edits.delete(swapAt(app, side, at));
}

function swapForm(app, side, at, done) {
  const field = make("input", { type: "text", name: "token", size: 12, "aria-label": t("swap"), autocomplete: "off" });
  const send = async () => {
    const { tokens } = await app.source.send("tokens", { text: field.value, side });
    if (tokens.length !== 1) throw new Trouble(both("swapOne", field.value, tokens.length));
    app.edits.add(`swap:${side}.${at}.${tokens[0].id}`);
    done();
  };
  return make("form", { class: "row", onsubmit: (event) => { event.preventDefault(); app.guard(send()); } },
    make("span", { class: "soft small" }, t("swapWith", app.pass.sides[side].tokens[at])), field, make("button", {}, t("swapDo")));
}
