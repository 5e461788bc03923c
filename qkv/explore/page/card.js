// A card of the experiments view, folded or open.
// Its content is loaded when it is opened; which cards are open is kept in app.openCards.
// If loading fails, the card shows the error.

import { make, fill } from "./dom.js";
import { note } from "./controls.js";
import { localized } from "./words.js";

export function card({ openCards }, name, title, about, load) {
  const body = make("div", { class: "card-content" }, make("span", { class: "soft" }, "…"));
  let loading = null;
  const toggle = () => {
    if (element.open) loading ??= show(body, load);
    openCards[element.open ? "add" : "delete"](name);
  };
  const element = make("details", { class: "card", "data-card": name, open: openCards.has(name), ontoggle: toggle },
    make("summary", {}, make("h2", {}, title)), about ? note(about) : null, body);
  toggle();
  return element;
}

async function show(body, load) {
  try {
    fill(body, ...[await load()].flat());
  } catch (error) {
    if (!error.texts) throw error;
    fill(body, note(localized(error.texts)));
  }
}
