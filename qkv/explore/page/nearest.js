// Nearest sentences, for a model that turns sentences into vectors.
// In: sentences, one a line. Out: the same, the closest to the open sentence first.
// Closeness is the cosine of the sentence vectors.

import { make, fill } from "./dom.js";
import { button, note } from "./controls.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars, cosineBar } from "./bars.js";

export function nearestCard(app) {
  return card("nearest", t("nearest"), null, content(app), "wide");
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
  return app.source.offline ? [about, list] : [about, typed(app, show), list];
}

function typed(app, show) {
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
