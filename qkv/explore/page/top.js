// The top of the page: which model, which text, what it says.
// In: the app. Out: facts, settings, a field for the text (or the recorded texts of a file), and the answer.
// All of it is drawn anew when the pass or the language changes.

import { make, fill, byId } from "./dom.js";
import { button } from "./controls.js";
import { t, say, both } from "./words.js";
import { languageSwitch, themeSwitch } from "./settings.js";

const SHORT = 100;  // tokens; a longer text is not continued unasked

export function drawTop(app) {
  if (!app.model) return;
  drawFacts(app.model);
  fill(byId("settings"), languageSwitch(app.redraw), themeSwitch(app.refresh));
  drawAsk(app);
}

// The model's name, and all its sizes when asked.
function drawFacts(model) {
  const facts = model.facts.map(({ title, value }) => make("div", {}, make("dt", {}, say(title)),
    make("dd", {}, typeof value === "number" ? value.toLocaleString("en") : say(value))));
  const name = make("summary", {}, make("b", {}, model.name), ` · ${brief(model)}`);
  fill(byId("facts"), name, make("dl", {}, ...facts));
}

function brief({ family, stacks, d_model: width, parameters }) {
  const layers = stacks.map(({ n_layers: count }) => count).join(" + ");
  const sizes = [t("layers", layers), `d_model ${width}`, t("parameters", parameters.toLocaleString("en"))];
  return [t(family), ...sizes].join(" · ");
}

function drawAsk(app) {
  const form = byId("ask");
  form.onsubmit = (event) => {
    event.preventDefault();
    const text = form.elements.text.value;
    if (text.trim()) app.open({ text });
    else app.tell(both("emptyText"));
  };
  const field = app.source.offline ? [] : typedText(app);
  fill(form, ...field, make("div", { class: "below" }, app.pass ? answer(app) : make("span"), texts(app)));
}

// What is typed and not yet run is app.draft, so that another language does not lose it.
function typedText(app) {
  const families = { translator: "askTranslator", generator: "askGenerator", embedder: "askEmbedder" };
  const label = t(families[app.model.family]), oninput = () => { app.draft = field.value; };
  const field = make("textarea", {
    name: "text", rows: 1, "aria-label": label, placeholder: label, spellcheck: "false", onkeydown: enter, oninput });
  field.value = app.draft ?? app.text;
  return [field, make("button", { class: "main" }, t("run"))];
}

function enter(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.target.form.requestSubmit();
}

// Examples to click, or all that a file has recorded.
function texts({ source, model, text: current, open }) {
  const known = source.offline ? source.passes.map(({ text }) => text) : model.examples;
  if (!known.length) return null;
  const buttons = known.map((text) => button(text, () => open({ text }), { "aria-pressed": String(text === current) }));
  const title = t(source.offline ? "recordedTexts" : "examples");
  return make("div", { class: "examples" }, make("span", { class: "soft" }, title), ...buttons);
}

function answer(app) {
  const { pass, source, model } = app;
  const said = make("span", { id: "said" }, pass.said?.text ?? "");
  if (pass.family === "generator" && model.can.say && pass.positions <= SHORT) goOn(app, said);
  const edited = pass.edits.length ? [make("span", { class: "soft small" }, t("edited", pass.edits.join(", "))),
    button(t("undoAll"), () => app.open({ text: pass.text }))] : [];
  return make("div", { class: "row" }, source.offline ? make("span", { class: "soft" }, pass.text) : null,
    make("span", { class: "answer" }, said), ...edited);
}

// How a language model goes on, once the view stands; where a file has not recorded it, nothing stands there.
async function goOn({ source, pass }, place) {
  const { text } = await source.json(`pass/${pass.id}/say`).catch(() => ({ text: "" }));
  place.textContent = text;
}
