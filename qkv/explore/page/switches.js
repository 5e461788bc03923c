// Switch parts off, or swap a token, and see what changes.
// In: the layers and heads of the model. Out: a card of switches with what the model says before and after.
// Chosen edits live in app.edits, written as the back end writes them: head:decoder.0.attn.3.

import { make, fill, digits } from "./dom.js";
import { button, note } from "./controls.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars } from "./bars.js";
import { named } from "./source.js";
import { positionName } from "./sides.js";
import { swapper } from "./swap.js";

export function switchesCard(app) {
  const result = make("div", { class: "change card-content" });
  const show = async () => fill(result, ...await changed(app));
  const again = () => app.guard(show());
  const whole = async () => {
    await show();
    return [board(app, again), ...(app.source.offline ? [] : [swapper(app, again)]), result];
  };
  return card("switches", t("switches"), t("switchesAbout"), whole());
}

function board(app, again) {
  const rows = app.model.stacks.flatMap(({ name, layers }) => [
    ...(app.model.can.positions_off ? [[t(name), [[t("positionsOf"), [[`positions:${name}`, t("wholeLayer")]]]]]] : []),
    ...layers.map((layer, at) => [`${t(name)} ${at + 1}`, partsOf(name, layer, at)])]);
  return make("div", { class: "switches" }, ...rows.map(([label, parts]) => switchRow(label, parts, app, again)));
}

// [[name of a part, [[edit, label], ...]], ...] of a layer: a whole part, then each of its heads.
function partsOf(stack, layer, at) {
  const switches = (part, heads) => [[`layer:${stack}.${at}.${part}`, t("wholeLayer")],
    ...Array.from({ length: heads ?? 0 }, (_, head) => [`head:${stack}.${at}.${part}.${head}`, String(head)])];
  const cross = layer.cross_heads ? [[t("partCross"), switches("cross", layer.cross_heads)]] : [];
  return [[t("partAttn"), switches("attn", layer.n_heads)], ...cross, [t("partFfn"), switches("ffn")]];
}

function switchRow(label, parts, app, again) {
  const groups = parts.map(([name, switches]) => make("span", { class: "switch-part" },
    make("span", { class: "soft" }, name), ...switches.map(([edit, text]) => switchButton(edit, text, app, again))));
  return make("div", { class: "switch-row" }, make("b", {}, label), ...groups);
}

// What is off in the open pass itself stays off here.
function switchButton(edit, text, app, again) {
  const gone = app.pass.edits.includes(edit);
  const mark = () => element.setAttribute("aria-pressed", String(!gone && !app.edits.has(edit)));
  const press = () => {
    if (!app.edits.delete(edit)) app.edits.add(edit);
    mark();
    again();
  };
  const element = button(text, press, { "data-edit": edit, "aria-label": edit, disabled: gone });
  mark();
  return element;
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
  const top = ({ positions }) => positions.find(({ position }) => position === app.position)?.top ?? [];
  const chances = (tokens) => new Map(tokens.map(({ id, p }) => [id, p]));
  const then = chances(top(before)), now = chances(top(after));
  const names = new Map([...top(after), ...top(before)].map(({ id, token }) => [id, token]));
  const rows = [...names].map(([id, name]) => ({ id, name, share: now.get(id) ?? 0, before: then.get(id) ?? 0 }));
  return rows.length ? [make("h3", {}, positionName(app.pass, app.position)), bars(rows, 1)] : [];
}
