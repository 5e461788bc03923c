// Header of the page: model metadata, settings, the text form and the generated text.
// An offline file has buttons for its recorded texts instead of the text field.
// Everything is drawn again when the pass or the language changes.

import { make, fill, byId } from "./dom.js";
import { button } from "./controls.js";
import { t, localized, both } from "./words.js";
import { languageSwitch, themeSwitch } from "./settings.js";

const MAX_CONTINUED = 100;  // tokens; a longer prompt is not continued automatically

export function drawHeader(app) {
  if (!app.model) return;
  drawMetadata(app.model);
  fill(byId("settings"), languageSwitch(app.redraw), themeSwitch(app.refresh));
  drawForm(app);
}

// The model's name and size; details on demand.
function drawMetadata(model) {
  const rows = model.metadata.map(({ title, value }) => make("div", {}, make("dt", {}, localized(title)),
    make("dd", {}, typeof value === "number" ? value.toLocaleString("en") : localized(value))));
  const name = make("summary", {}, make("b", {}, model.name), ` · ${brief(model)}`);
  fill(byId("metadata"), name, make("dl", {}, ...rows));
}

function brief({ family, stacks, d_model: width, parameters }) {
  const layers = stacks.map(({ n_layers: count }) => count).join(" + ");
  const sizes = [t("layers", layers), `d_model ${width}`, t("parameters", parameters.toLocaleString("en"))];
  return [t(family), ...sizes].join(" · ");
}

function drawForm(app) {
  const form = byId("text-form");
  form.onsubmit = (event) => {
    event.preventDefault();
    const text = form.elements.text.value;
    if (text.trim()) app.open({ text });
    else app.showError(both("emptyText"));
  };
  const field = app.source.offline ? [] : textField(app);
  fill(form, ...field, make("div", { class: "below" }, app.pass ? result(app) : make("span"), texts(app)));
}

// Text that was typed but not yet run is app.draft, so that switching the language keeps it.
function textField(app) {
  const labels = { translator: "inputTranslator", generator: "inputGenerator", embedder: "inputEmbedder" };
  const label = t(labels[app.model.family]), oninput = () => { app.draft = field.value; };
  const field = make("textarea", {
    name: "text", rows: 1, "aria-label": label, placeholder: label, spellcheck: "false",
    onkeydown: submitOnEnter, oninput });
  field.value = app.draft ?? app.text;
  return [field, make("button", { class: "main" }, t("run"))];
}

function submitOnEnter(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  event.target.form.requestSubmit();
}

// Buttons with example texts, or with the recorded texts of a file.
function texts({ source, model, text: current, open }) {
  const known = source.offline ? source.passes.map(({ text }) => text) : model.examples;
  if (!known.length) return null;
  const buttons = known.map((text) => button(text, () => open({ text }), { "aria-pressed": String(text === current) }));
  const title = t(source.offline ? "recordedTexts" : "examples");
  return make("div", { class: "examples" }, make("span", { class: "soft" }, title), ...buttons);
}

function result(app) {
  const { pass, source, model } = app;
  const generated = make("span", { id: "generated" }, pass.generated?.text ?? "");
  if (pass.family === "generator" && model.supports.generate && pass.positions <= MAX_CONTINUED) {
    showContinuation(app, generated);
  }
  const edited = pass.edits.length ? [make("span", { class: "soft small" }, t("edited", pass.edits.join(", "))),
    button(t("undoAll"), () => app.open({ text: pass.text }))] : [];
  return make("div", { class: "row" }, source.offline ? make("span", { class: "soft" }, pass.text) : null,
    make("span", { class: "result" }, generated), ...edited);
}

// Show the continuation of a prompt when it arrives; if a file has not recorded it, show nothing.
async function showContinuation({ source, pass }, element) {
  const { text } = await source.json(`pass/${pass.id}/generate`).catch(() => ({ text: "" }));
  element.textContent = text;
}
