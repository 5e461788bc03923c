// Nearest sentences, for a model that turns sentences into vectors.
// In: sentences, one a line. Out: the same, the closest to the open sentence first.
// Closeness is the cosine of the sentence vectors.

import { make, fill } from "./dom.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars } from "./bars.js";

export function nearestCard(app) {
  const element = card("nearest", t("nearest"), null, content(app));
  element.classList.add("wide");
  return element;
}

async function content(app) {
  const about = make("p", { class: "soft small" }), list = make("div");
  const show = async () => {
    const { pooling, nearest } = await app.source.json(`pass/${app.pass.id}/nearest`);
    about.textContent = t("nearestAbout", pooling);
    fill(list, nearest.length ? bars(nearest.map(({ text, cosine }) => ({ name: text, share: Math.max(0, cosine) })), 1, "bars sentences") : make("p", { class: "soft" }, t("noSentences")));
  };
  await show();
  return [about, app.source.offline ? null : typed(app, show), list].filter(Boolean);
}

function typed(app, show) {
  const field = make("textarea", { rows: 4, "aria-label": t("nearest") });
  field.value = app.sentences ?? "";
  const send = async () => {
    app.sentences = field.value;
    await app.source.send("sentences", { sentences: field.value.split("\n").map((line) => line.trim()).filter(Boolean) });
    app.source.forget(`pass/${app.pass.id}/nearest`);
    await show();
  };
  return make("div", { class: "typed" }, field, make("button", { type: "button", onclick: () => app.guard(send()) }, t("measure")));
}
