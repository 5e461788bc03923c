// The page: a text in, three views of what the model does with it.
// In: the model's facts and passes from the source. Out: the top of the page, the tabs and the chosen view.
// `app` is all that the views share: the model, the open pass, and what the person has chosen so far.

import { fill, byId } from "./dom.js";
import { button, note, alongButtons } from "./controls.js";
import { t, say, both } from "./words.js";
import { findSource } from "./source.js";
import { drawTop } from "./top.js";
import { asTheSystem, asTheServer } from "./settings.js";
import { showWalk } from "./walk.js";
import { showAttention } from "./attention.js";
import { showTryout } from "./tryout.js";

const VIEWS = { walk: showWalk, attention: showAttention, tryout: showTryout };
const app = { tab: "walk", text: "", step: 0, position: 0, pass: null, edits: new Set(), draft: null,
  guard, open, tell, refresh, redraw };

async function start() {
  app.source = findSource();
  asTheSystem(redraw);
  app.model = await app.source.json("model");
  asTheServer(app.model.language);
  document.title = `${app.model.name} · qkv`;
  app.text = (app.source.offline ? app.source.passes[0]?.text : app.model.examples[0]) ?? "";
  redraw();
  if (app.text) await open({ text: app.text });
}

// One text through the model; the views then show this pass.
async function open(request) {
  const { draft } = app;
  tell(null);
  byId("view").classList.add("busy");
  const pass = await guard(app.source.open(request));
  byId("view").classList.remove("busy");
  if (!pass) return;
  keepPlace(app.pass, pass);
  keepEdits(app.pass, pass);
  if (app.draft === draft) app.draft = null;  // what was typed while the model ran stays
  Object.assign(app, { pass, text: pass.text });
  redraw();
}

// The same step and, in the same text, the same position as before; else the beginning.
function keepPlace(old, pass) {
  if (old?.steps.length !== pass.steps.length) app.step = 0;
  if (old?.text !== pass.text) app.position = pass.family === "generator" ? Infinity : 0;
  app.position = Math.max(0, Math.min(app.position, pass.positions - 1));
}

// A part stays switched off in the next text; a swapped token was a token of the old one.
function keepEdits(old, pass) {
  if (old?.text === pass.text) return;
  for (const one of app.edits) if (one.startsWith("swap:")) app.edits.delete(one);
}

// Everything anew: another pass, another language.
function redraw() {
  drawTop(app);
  drawTabs();
  tell(app.trouble);
  refresh();
}

function refresh() {
  app.leave?.();
  app.leave = null;
  if (app.pass) fill(byId("view"), VIEWS[app.tab](app));
  else if (!app.text) fill(byId("view"), note(t("begin"), { class: "card soft" }));
}

function drawTabs() {
  const tabs = Object.keys(VIEWS).map((name) => button(t(name), () => choose(name), {
    role: "tab", id: `tab-${name}`, "aria-selected": String(name === app.tab), "aria-controls": "view",
    tabindex: name === app.tab ? 0 : -1 }));
  fill(byId("tabs"), ...tabs);
  byId("tabs").setAttribute("aria-label", t("views"));
  byId("tabs").onkeydown = alongButtons;
}

function choose(name) {
  app.tab = name;
  drawTabs();
  byId(`tab-${name}`).focus();
  refresh();
}

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
  app.trouble = sentence;
  byId("trouble").hidden = !sentence;
  byId("trouble").textContent = sentence ? say(sentence) : "";
}

guard(start());
