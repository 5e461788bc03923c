// A card of the "try things" page.
// In: a title, a sentence about it, and content that may arrive later. Out: the card, at once.
// If the content never comes, the card says why, in one sentence.

import { make, fill } from "./dom.js";
import { note } from "./controls.js";
import { say } from "./words.js";

export function card(name, title, about, arriving, kind = "") {
  const place = make("div", { class: "card-content" }, make("span", { class: "soft" }, "…"));
  Promise.resolve(arriving).then((content) => fill(place, ...[content].flat()), (error) => {
    if (!error.sentence) throw error;
    fill(place, note(say(error.sentence)));
  });
  return make("section", { class: `card ${kind}`, "data-card": name },
    make("h2", {}, title), about ? note(about) : null, place);
}
