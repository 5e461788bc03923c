// Entry point: the text form, three tabs and the selected view of the open pass.
// `app` is the state that the views share: model metadata, open pass, selected step and position, edits.
// A view draws itself from `app`; `redraw` draws everything, `refresh` the selected view.

import { fill, byId } from "./dom.js";
import { button, note, moveFocus } from "./controls.js";
import { t, localized, both } from "./words.js";
import { findSource } from "./source.js";
import { drawHeader } from "./header.js";
import { applySystemSettings, applyServerLanguage } from "./settings.js";
import { showSteps } from "./steps.js";
import { showAttention } from "./attention.js";
import { showExperiments } from "./experiments.js";

const VIEWS = { steps: showSteps, attention: showAttention, experiments: showExperiments };
const app = { tab: "steps", text: "", step: 0, position: 0, pass: null, edits: new Set(), draft: null,
  guard, open, showError, refresh, redraw };

async function start() {
  app.source = findSource();
  applySystemSettings(redraw);
  app.model = await app.source.json("model");
  applyServerLanguage(app.model.language);
  document.title = `${app.model.name} · qkv`;
  app.text = (app.source.offline ? app.source.passes[0]?.text : app.model.examples[0]) ?? "";
  redraw();
  if (app.text) await open({ text: app.text });
}

// Run the model on a text; the views then show this pass.
async function open(request) {
  const { draft } = app;
  showError(null);
  byId("view").classList.add("busy");
  const pass = await guard(app.source.open(request));
  byId("view").classList.remove("busy");
  if (!pass) return;
  keepPosition(app.pass, pass);
  keepEdits(app.pass, pass);
  if (app.draft === draft) app.draft = null;  // keep what was typed while the model ran
  Object.assign(app, { pass, text: pass.text });
  redraw();
}

// Keep the selected step and, in the same text, the position; otherwise start from the beginning.
function keepPosition(old, pass) {
  if (old?.steps.length !== pass.steps.length) app.step = 0;
  if (old?.text !== pass.text) app.position = pass.family === "generator" ? Infinity : 0;
  app.position = Math.max(0, Math.min(app.position, pass.positions - 1));
}

// Ablations apply to the next text, too; swaps belong to the tokens of the old one.
function keepEdits(old, pass) {
  if (old?.text === pass.text) return;
  for (const edit of app.edits) if (edit.startsWith("swap:")) app.edits.delete(edit);
}

// Draw everything again: after another pass or in another language.
function redraw() {
  drawHeader(app);
  drawTabs();
  showError(app.error);
  refresh();
}

function refresh() {
  app.cleanUp?.();
  app.cleanUp = null;
  if (app.pass) fill(byId("view"), VIEWS[app.tab](app));
  else if (!app.text) fill(byId("view"), note(t("begin"), { class: "card soft" }));
}

function drawTabs() {
  const tabs = Object.keys(VIEWS).map((name) => button(t(name), () => selectTab(name), {
    role: "tab", id: `tab-${name}`, "aria-selected": String(name === app.tab), "aria-controls": "view",
    tabindex: name === app.tab ? 0 : -1 }));
  fill(byId("tabs"), ...tabs);
  byId("tabs").setAttribute("aria-label", t("views"));
  byId("tabs").onkeydown = moveFocus;
}

function selectTab(name) {
  app.tab = name;
  drawTabs();
  byId(`tab-${name}`).focus();
  refresh();
}

// Show the error of a failed promise at the top of the page.
async function guard(promise) {
  try {
    return await promise;
  } catch (error) {
    showError(error.texts ?? both("unexpected", error.message));
    if (!error.texts) throw error;
    return null;
  }
}

function showError(texts) {
  app.error = texts;
  byId("error").hidden = !texts;
  byId("error").textContent = texts ? localized(texts) : "";
}

guard(start());
