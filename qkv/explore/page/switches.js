// Switch parts off, or swap a token, and see what changes.
// In: the layers and heads of the model. Out: a card of switches with what the model says before and after.
// Chosen edits live in app.edits, written as the back end writes them: head:decoder.0.attn.3.

import { make, fill, digits } from "./dom.js";
import { button, note } from "./controls.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars, atMost } from "./bars.js";
import { named, lastOf } from "./source.js";
import { positionName } from "./sides.js";
import { swapper } from "./swap.js";

export function switchesCard(app) {
  const result = make("div", { class: "change card-content" }), last = lastOf();
  const show = async () => {
    const change = await last(changed(app));
    if (change) fill(result, ...change);
  };
  const again = () => app.guard(show());
  const whole = async () => {
    await again();  // what cannot be changed is told at the top; the switches stay, to change it back
    const more = app.source.offline ? note(t("onlyOne"), { "data-note": "only-one" }) : swapper(app, again);
    return [board(app, again), more, result];
  };
  return card("switches", t("switches"), t("switchesAbout"), whole());
}

function board(app, again) {
  const rows = app.model.stacks.flatMap(({ name, layers }) => [
    ...(app.model.can.positions_off ? [[t(name), [[null, [[`positions:${name}`, t("positionsOf")]]]]]] : []),
    ...layers.map((layer, at) => [`${t(name)} ${at + 1}`, partsOf(name, layer, at)])]);
  const element = make("div", { class: "switches" });
  const press = (edit) => {
    flip(app, edit);
    mark(app, element);
    again();
  };
  element.append(...rows.map(([label, parts]) => switchRow(label, parts, press)));
  mark(app, element);
  return element;
}

// A file has recorded each part switched off alone: there, a second one takes the place of the first.
function flip({ edits, source }, edit) {
  const was = edits.delete(edit);
  if (source.offline) edits.clear();
  if (!was) edits.add(edit);
}

// What is off in the open pass itself stays off here.
function mark({ pass, edits }, place) {
  for (const one of place.querySelectorAll("button")) {
    const { edit } = one.dataset;
    one.disabled = pass.edits.includes(edit);
    one.setAttribute("aria-pressed", String(!one.disabled && !edits.has(edit)));
  }
}

// [[name of a part, [[edit, label], ...]], ...] of a layer: the layer, then each whole part and its heads.
function partsOf(stack, layer, at) {
  const switches = (part, heads) => [[`layer:${stack}.${at}.${part}`, t("wholeLayer")],
    ...Array.from({ length: heads ?? 0 }, (_, head) => [`head:${stack}.${at}.${part}.${head}`, String(head + 1)])];
  const cross = layer.cross_heads ? [[t("partCross"), switches("cross", layer.cross_heads)]] : [];
  return [[null, [[`layer:${stack}.${at}`, t("partLayer")]]],
    [t("partAttn"), switches("attn", layer.n_heads)], ...cross, [t("partFfn"), switches("ffn")]];
}

function switchRow(label, parts, press) {
  const one = (name) => ([edit, text]) => button(text, () => press(edit), {
    "data-edit": edit, "aria-label": [label, name, text].filter(Boolean).join(" · ") });
  const groups = parts.map(([name, switches]) => make("span", { class: "switch-part" },
    name ? make("span", { class: "soft" }, name) : null, ...switches.map(one(name))));
  return make("div", { class: "switch-row" }, make("b", {}, label), ...groups);
}

async function changed(app) {
  if (!app.edits.size) return [note(t("nothingOff"))];
  const edits = [...app.edits].sort();
  const { before, after, vector } = await app.source.json(
    named(`pass/${app.pass.id}/change`, { edits: edits.join(",") }));
  const open = button(t("openEdited"), () => openEdited(app, edits));
  return [said(before, after), ...topTokens(app, before, after), vector ? likeness(vector) : null,
    app.source.offline ? null : open];
}

// The changed model becomes the open pass, so its edits are no longer edits to it.
function openEdited(app, edits) {
  app.edits.clear();
  app.open({ text: app.pass.text, edits: [...new Set([...app.pass.edits, ...edits])].sort() });
}

function said(before, after) {
  if (before.said === null) return null;
  return make("dl", { class: "compare" },
    make("dt", {}, t("saidBefore")), make("dd", { "data-said": "before" }, before.said),
    make("dt", {}, t("saidAfter")), make("dd", { "data-said": "after" }, after.said));
}

function likeness({ cosine }) {
  return make("p", {}, `${t("similarity")}: `, make("b", { "data-value": cosine }, digits(cosine)));
}

// The five likeliest tokens after the change, and those before, at the chosen position.
function topTokens(app, before, after) {
  const top = ({ positions }) => positions.find(({ position }) => position === app.position)?.top;
  if (!before.positions.length) return [];  // the model ends in vectors
  if (!top(before)) return [note(t("firstPlaces", before.positions.length), { "data-note": "first-places" })];
  const title = t(app.pass.family === "translator" ? "chanceWhere" : "chanceOf", positionName(app.pass, app.position));
  return [make("h3", {}, title), bars(compared(top(before), top(after)), 1)];
}

// Only five chances are known on each side: a token that is now beyond them has no bar, one that was has no mark.
function compared(before, after) {
  const chances = (tokens) => new Map(tokens.map(({ id, p }) => [id, p]));
  const then = chances(before), now = chances(after), beyond = { share: 0, label: atMost(after.at(-1).p) };
  const names = new Map([...after, ...before].map(({ id, token }) => [id, token]));
  return [...names].map(([id, name]) =>
    ({ id, name, before: then.get(id), ...(now.has(id) ? { share: now.get(id) } : beyond) }));
}
