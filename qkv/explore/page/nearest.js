// Nearest sentences of an encoder-only model.
// The user types sentences, one per line; they are sorted by similarity to the open one.
// Similarity is the cosine of the sentence vectors.

import { make, fill } from "./dom.js";
import { button, note } from "./controls.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars, cosineBar } from "./bars.js";

export function nearestCard(app) {
  return card(app, "nearest", t("nearest"), null, () => content(app));
}

async function content(app) {
  const about = note(""), list = make("div");
  const show = async () => {
    const { pooling, nearest } = await app.source.json(`pass/${app.pass.id}/nearest`);
    const rows = nearest.map(({ text, cosine }) => cosineBar({ name: text, cosine }));
    about.textContent = t("nearestAbout", pooling);
    fill(list, rows.length ? bars(rows, 1, "bars sentences") : note(t("noSentences")));
  };
  await show();
  return app.source.offline ? [about, list] : [about, sentenceField(app, show), list];
}

function sentenceField(app, show) {
  const field = make("textarea", { rows: 4, "aria-label": t("nearest") });
  field.value = app.sentences ?? "";
  const send = async () => {
    app.sentences = field.value;
    const sentences = field.value.split("\n").map((line) => line.trim()).filter(Boolean);
    await app.source.send("sentences", { sentences });
    app.source.forget("/nearest");
    await show();
  };
  return make("div", { class: "typed" }, field, button(t("measure"), () => app.guard(send())));
}
