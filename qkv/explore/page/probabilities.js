// Sampling from the logits: temperature, top-k and top-p, live.
// The bars follow the sliders; marks show the probabilities at temperature 1 without truncation.
// The logits of the whole vocabulary are used; the names of the top 200 tokens are fetched.

import { make, fill } from "./dom.js";
import { button, note, slider } from "./controls.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars } from "./bars.js";
import { distribution, softmax } from "./sampling.js";
import { requestName } from "./source.js";

const N_BARS = 12;
const OFF = { topK: 0, topP: 1 };

export function probabilitiesCard(app) {
  app.sampling ??= { temperature: 1, ...OFF };
  return card(app, "probabilities", t("probabilities"), t("probabilitiesAbout"), () => content(app));
}

async function content(app) {
  const path = `pass/${app.pass.id}`;
  const [{ data: logits }, top] = await Promise.all([
    app.source.tensor(`${path}/logits/${app.position}`),
    app.source.json(requestName(`${path}/top/${app.position}`, { k: 200 }))]);
  const before = softmax(logits), chart = make("div"), sampled = make("span", { class: "soft" });
  const now = () => distribution(logits, app.sampling);
  const show = () => fill(chart, ...picture(top, before, now()));
  const sample = () => { sampled.textContent = t("sampled", sampleToken(top, now())); };
  show();
  return [...sliders(app.sampling, show), chart, make("div", { class: "row" }, button(t("sample"), sample), sampled)];
}

function sliders(sampling, show) {
  const control = (name, min, max, step) => {
    const update = (value) => {
      sampling[name] = value;
      show();
    };
    const format = (value) => value === OFF[name] ? t("off") : String(value);
    return slider(t(name), { name, min, max, step, value: sampling[name] }, update, { show: format });
  };
  return [control("temperature", 0, 2, 0.05), control("topK", 0, 100, 1), control("topP", 0.05, 1, 0.05)];
}

function picture(top, before, now) {
  const rows = top.tokens.slice(0, N_BARS).map(({ id, token }) =>
    ({ id, name: token, fraction: now[id], before: before[id] }));
  const candidates = now.reduce((count, prob) => count + (prob > 0), 0);
  const text = t("candidates", candidates.toLocaleString("en"), now.length.toLocaleString("en"));
  return [bars(rows, 1), note(text, { "data-candidates": candidates })];
}

// Inverse transform sampling.
function sampleToken({ tokens }, probs) {
  let rest = Math.random(), id = 0;
  while (id < probs.length - 1 && (rest -= probs[id]) > 0) id++;
  return tokens.find((token) => token.id === id)?.token ?? `#${id}`;
}
