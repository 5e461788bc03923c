// A card of the experiments view.
// The card is drawn immediately; its content is filled in when the promise resolves.
// If the promise fails, the card shows the error.

import { make, fill } from "./dom.js";
import { note } from "./controls.js";
import { localized } from "./words.js";

export function card(name, title, about, promise, kind = "") {
  const body = make("div", { class: "card-content" }, make("span", { class: "soft" }, "…"));
  Promise.resolve(promise).then((content) => fill(body, ...[content].flat()), (error) => {
    if (!error.texts) throw error;
    fill(body, note(localized(error.texts)));
  });
  return make("section", { class: `card ${kind}`, "data-card": name },
    make("h2", {}, title), about ? note(about) : null, body);
}
