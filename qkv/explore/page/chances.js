// From logits to a choice: temperature, top-k and top-p, live.
// In: the raw logits of the chosen position. Out: a card whose bars follow the sliders; the marks are the chances before.
// The whole vocabulary is computed here; the names of the 200 likeliest tokens come along.

import { make, fill } from "./dom.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars } from "./bars.js";
import { distribution, softmax } from "./sampling.js";
import { named } from "./source.js";

const SHOWN = 12;
const SLIDERS = [["temperature", 0, 2, 0.05], ["topK", 0, 100, 1], ["topP", 0.05, 1, 0.05]];

export function chancesCard(app) {
  app.sampling ??= { temperature: 1, topK: 0, topP: 1 };
  return card("chances", t("chances"), t("chancesAbout"), content(app));
}

async function content(app) {
  const path = `pass/${app.pass.id}`;
  const [{ data: logits }, top] = await Promise.all([
    app.source.tensor(`${path}/logits/${app.position}`), app.source.json(named(`${path}/top/${app.position}`, { k: 200 }))]);
  const before = softmax(logits);
  const place = make("div"), drawn = make("span", { class: "drawn soft" });
  const show = () => fill(place, ...picture(top, before, distribution(logits, app.sampling)));
  show();
  const draw = make("button", { type: "button", onclick: () => { drawn.textContent = t("drawn", drawOne(top, distribution(logits, app.sampling))); } }, t("draw"));
  return [...SLIDERS.map((one) => slider(app.sampling, one, show)), place, make("div", { class: "row" }, draw, drawn)];
}

function slider(sampling, [name, min, max, step], show) {
  const output = make("output");
  const tell = () => { output.textContent = (name === "topK" && !sampling.topK) || (name === "topP" && sampling.topP === 1) ? t("off") : String(sampling[name]); };
  const input = make("input", { type: "range", name, min, max, step, value: sampling[name], "aria-label": t(name), oninput: () => {
    sampling[name] = Number(input.value);
    tell();
    show();
  } });
  tell();
  return make("label", { class: "slider" }, make("span", {}, t(name)), input, output);
}

function picture(top, before, now) {
  const rows = top.tokens.slice(0, SHOWN).map(({ id, token }) => ({ id, name: token, share: now[id], before: before[id] }));
  const possible = now.reduce((count, chance) => count + (chance > 0), 0);
  return [bars(rows, 1), make("p", { class: "soft small", "data-possible": possible }, t("leftOver", possible.toLocaleString("en"), now.length.toLocaleString("en")))];
}

function drawOne({ tokens }, chances) {
  let left = Math.random(), id = 0;
  while (id < chances.length - 1 && (left -= chances[id]) > 0) id++;
  return tokens.find((token) => token.id === id)?.token ?? `#${id}`;
}
