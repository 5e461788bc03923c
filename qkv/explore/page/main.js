// The page: a text in, three views of what the model does with it.
// In: the model's facts and passes from the source. Out: the top of the page, the tabs and the chosen view.
// `app` is all that the views share: the model, the open pass, and what the person has chosen so far.

import { make, fill, byId, choices, alongButtons } from "./dom.js";
import { t, say, both, setLanguage, currentLanguage } from "./words.js";
import { theme } from "./colours.js";
import { findSource } from "./source.js";
import { showWalk } from "./walk.js";
import { showAttention } from "./attention.js";
import { showTryout } from "./tryout.js";

const VIEWS = { walk: showWalk, attention: showAttention, tryout: showTryout };
const app = { source: findSource(), model: null, pass: null, tab: "walk", step: 0, position: 0, guard, open, refresh };

// Whatever fails becomes one sentence at the top of the page.
async function guard(doing) {
  try {
    return await doing;
  } catch (error) {
    tell(error.sentence ?? both("unexpected", error.message));
    if (!error.sentence) throw error;
    return null;
  }
}

function tell(sentence) {
  const place = byId("trouble");
  place.hidden = !sentence;
  place.textContent = sentence ? say(sentence) : "";
  app.trouble = sentence;
}

async function start() {
  remembered();
  app.model = await app.source.json("model");
  if (!recall("language")) setLanguage(app.model.language);
  document.title = `${app.model.name} · qkv`;
  app.text = app.source.offline ? app.source.passes[0]?.text : app.model.examples[0] ?? "";
  drawTop();
  if (app.text) await open({ text: app.text });
}

// One text through the model; the views then show this pass.
async function open(request) {
  tell(null);
  byId("view").classList.add("busy");
  const pass = await guard(app.source.open(request));
  byId("view").classList.remove("busy");
  if (!pass) return;
  app.text = pass.text;
  app.step = app.pass?.steps.length === pass.steps.length ? app.step : 0;
  app.position = Math.min(app.pass?.text === pass.text ? app.position : firstPosition(pass), Math.max(0, pass.positions - 1));
  app.pass = pass;
  drawTop();
  refresh();
}

function firstPosition(pass) {
  return pass.family === "generator" ? pass.positions - 1 : 0;
}

function refresh() {
  app.leave?.();
  app.leave = null;
  fill(byId("view"), VIEWS[app.tab](app));
}

function drawTop() {
  drawFacts();
  drawSettings();
  drawAsk();
  drawTabs();
  tell(app.trouble);
}

// The model's name, and all its sizes when asked.
function drawFacts() {
  const facts = app.model.facts.map(({ title, value }) => make("div", {}, make("dt", {}, say(title)),
    make("dd", {}, typeof value === "number" ? value.toLocaleString("en") : say(value))));
  fill(byId("facts"), make("summary", {}, make("b", {}, app.model.name), ` · ${brief(app.model)}`), make("dl", {}, ...facts));
}

function brief({ family, stacks, d_model, parameters }) {
  const layers = stacks.map(({ n_layers }) => n_layers).join(" + ");
  return [t(family), t("layers", layers), `d_model ${d_model}`, t("parameters", parameters.toLocaleString("en"))].join(" · ");
}

function drawSettings() {
  const language = choices([["en", "EN"], ["zh", "中文"]], currentLanguage(), t("language"), (chosen) => {
    keep("language", chosen);
    setLanguage(chosen);
    redraw();
    byId("settings").querySelector(`[data-choice="${chosen}"]`).focus();
  });
  const colours = choices([["light", t("light")], ["dark", t("dark")]], theme(), t("theme"), (chosen) => {
    keep("theme", chosen);
    document.documentElement.dataset.theme = chosen;
    refresh();
  });
  fill(byId("settings"), language, colours);
}

function redraw() {
  drawTop();
  if (app.pass) refresh();
}

function drawAsk() {
  const form = byId("ask");
  form.onsubmit = (event) => {
    event.preventDefault();
    const text = form.elements.text.value;
    if (text.trim()) open({ text });
    else tell(both("emptyText"));
  };
  const [field, choice] = app.source.offline ? [[], recordedTexts()] : [typedText(), examples()];
  fill(form, ...field, make("div", { class: "below" }, answer() ?? make("span"), choice));
}

function typedText() {
  const label = t(`ask${app.model.family[0].toUpperCase()}${app.model.family.slice(1)}`);
  const field = make("textarea", { name: "text", rows: 1, "aria-label": label, placeholder: label, spellcheck: "false", onkeydown: enter });
  field.value = app.text;
  return [field, make("button", { class: "main" }, t("run"))];
}

function examples() {
  const buttons = app.model.examples.map((text) => make("button", { type: "button", onclick: () => open({ text }) }, text));
  return buttons.length ? make("div", { class: "examples" }, make("span", { class: "soft" }, t("examples")), ...buttons) : null;
}

function enter(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.target.form.requestSubmit();
}

function recordedTexts() {
  const texts = app.source.passes.map(({ text }) =>
    make("button", { type: "button", "aria-pressed": String(text === app.text), onclick: () => open({ text }) }, text));
  return make("div", { class: "examples recorded" }, make("span", { class: "soft" }, t("recordedTexts")), ...texts);
}

function answer() {
  if (!app.pass) return null;
  const edited = app.pass.edits.length ? [make("span", { class: "edited" }, t("edited", app.pass.edits.join(", "))),
    make("button", { type: "button", onclick: () => open({ text: app.pass.text }) }, t("undoAll"))] : [];
  if (!app.pass.said && !edited.length) return null;
  const asked = app.source.offline ? make("span", { class: "soft" }, app.pass.text) : null;
  return make("div", { class: "row" }, asked, make("div", { class: "answer row" }, make("span", { id: "said" }, app.pass.said?.text ?? app.pass.text), ...edited));
}

function drawTabs() {
  const buttons = Object.keys(VIEWS).map((name) => make("button", {
    type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(name === app.tab), "aria-controls": "view",
    tabindex: name === app.tab ? 0 : -1, onclick: () => choose(name),
  }, t(name)));
  fill(byId("tabs"), ...buttons);
  byId("tabs").setAttribute("aria-label", t("views"));
  byId("tabs").onkeydown = alongButtons;
}

function choose(name) {
  app.tab = name;
  drawTabs();
  byId(`tab-${name}`).focus();
  if (app.pass) refresh();
}

// The person's language and colours, from the last visit or the system.
function remembered() {
  setLanguage(recall("language") ?? (navigator.language.startsWith("zh") ? "zh" : "en"));
  const system = matchMedia("(prefers-color-scheme: dark)");
  const follow = () => { document.documentElement.dataset.theme = recall("theme") ?? (system.matches ? "dark" : "light"); };
  system.addEventListener("change", () => { follow(); redraw(); });
  follow();
}

// A page that may not keep anything (a private window) simply forgets.
function recall(name) {
  try { return localStorage.getItem(`qkv-${name}`); } catch { return null; }
}

function keep(name, value) {
  try { localStorage.setItem(`qkv-${name}`, value); } catch { /* forgets */ }
}

guard(start());
