// From logits to a choice: temperature, top-k and top-p, live.
// In: the raw logits of the chosen position. Out: a card whose bars follow the sliders; marks show the chances before.
// The whole vocabulary is computed here; the names of the 200 likeliest tokens come along.

import { make, fill } from "./dom.js";
import { button, note, slider } from "./controls.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars } from "./bars.js";
import { distribution, softmax } from "./sampling.js";
import { named } from "./source.js";

const SHOWN = 12;
const OFF = { topK: 0, topP: 1 };

export function chancesCard(app) {
  app.sampling ??= { temperature: 1, ...OFF };
  return card("chances", t("chances"), t("chancesAbout"), content(app));
}

async function content(app) {
  const path = `pass/${app.pass.id}`;
  const [{ data: logits }, top] = await Promise.all([
    app.source.tensor(`${path}/logits/${app.position}`),
    app.source.json(named(`${path}/top/${app.position}`, { k: 200 }))]);
  const before = softmax(logits), place = make("div"), drawn = make("span", { class: "drawn soft" });
  const now = () => distribution(logits, app.sampling);
  const show = () => fill(place, ...picture(top, before, now()));
  const drawing = () => { drawn.textContent = t("drawn", drawOne(top, now())); };
  show();
  return [...sliders(app.sampling, show), place, make("div", { class: "row" }, button(t("draw"), drawing), drawn)];
}

function sliders(sampling, show) {
  const one = (name, min, max, step) => slider(t(name), { name, min, max, step, value: sampling[name] }, (value) => {
    sampling[name] = value;
    show();
  }, { show: (value) => value === OFF[name] ? t("off") : String(value) });
  return [one("temperature", 0, 2, 0.05), one("topK", 0, 100, 1), one("topP", 0.05, 1, 0.05)];
}

function picture(top, before, now) {
  const rows = top.tokens.slice(0, SHOWN).map(({ id, token }) =>
    ({ id, name: token, share: now[id], before: before[id] }));
  const possible = now.reduce((count, chance) => count + (chance > 0), 0);
  const told = t("leftOver", possible.toLocaleString("en"), now.length.toLocaleString("en"));
  return [bars(rows, 1), note(told, { "data-possible": possible })];
}

function drawOne({ tokens }, chances) {
  let left = Math.random(), id = 0;
  while (id < chances.length - 1 && (left -= chances[id]) > 0) id++;
  return tokens.find((token) => token.id === id)?.token ?? `#${id}`;
}
