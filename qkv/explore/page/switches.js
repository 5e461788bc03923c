// Switch parts off, or swap a token, and see what changes.
// In: the layers and heads of the model. Out: a card of switches with what the model says before and after.
// Chosen edits live in app.edits, written as the back end writes them: head:decoder.0.attn.3.

import { make, fill, digits } from "./dom.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars } from "./bars.js";
import { named } from "./source.js";
import { positionName } from "./sides.js";
import { swapper } from "./swap.js";

export function switchesCard(app) {
  const result = make("div", { class: "change" });
  const show = async () => fill(result, ...await changed(app));
  const again = () => app.guard(show());
  return card("switches", t("switches"), t("switchesAbout"), show().then(() => [switchBoard(app, again), app.source.offline ? null : swapper(app, again), result].filter(Boolean)));
}

function switchBoard(app, again) {
  const rows = app.model.stacks.flatMap(({ name, layers }) => [
    app.model.can.positions_off ? switchRow(t(name), [[t("positionsOf"), [[`positions:${name}`, t("wholeLayer")]]]], app, again) : null,
    ...layers.map((layer, at) => switchRow(`${t(name)} ${at + 1}`, partsOf(name, layer, at), app, again))]);
  return make("div", { class: "switches" }, ...rows.filter(Boolean));
}

// [[name of a part, [[edit, label], ...]], ...] of a layer: a whole part, then each of its heads.
function partsOf(stack, layer, at) {
  const switches = (part, heads) => [[`layer:${stack}.${at}.${part}`, t("wholeLayer")],
    ...Array.from({ length: heads ?? 0 }, (_, head) => [`head:${stack}.${at}.${part}.${head}`, String(head)])];
  return [[t("partAttn"), switches("attn", layer.n_heads)], ...(layer.cross_heads ? [[t("partCross"), switches("cross", layer.cross_heads)]] : []),
    [t("partFfn"), switches("ffn")]];
}

function switchRow(label, parts, app, again) {
  return make("div", { class: "switch-row" }, make("b", {}, label), ...parts.map(([name, switches]) =>
    make("span", { class: "switch-part" }, make("span", { class: "soft" }, name), ...switches.map(([edit, text]) => switchButton(edit, text, app, again)))));
}

function switchButton(edit, text, app, again) {
  const button = make("button", { type: "button", "data-edit": edit, "aria-label": edit, "aria-pressed": String(!app.edits.has(edit)), onclick: () => {
    if (!app.edits.delete(edit)) app.edits.add(edit);
    button.setAttribute("aria-pressed", String(!app.edits.has(edit)));
    again();
  } }, text);
  return button;
}

async function changed(app) {
  if (!app.edits.size) return [make("p", { class: "soft" }, t("nothingOff"))];
  const edits = [...app.edits].sort();
  const { before, after, vector } = await app.source.json(named(`pass/${app.pass.id}/change`, { edits: edits.join(",") }));
  const open = make("button", { type: "button", onclick: () => app.open({ text: app.pass.text, edits }) }, t("openEdited"));
  return [said(before, after), ...topTokens(app, before, after), vector ? make("p", {}, `${t("similarity")}: `, make("b", { "data-value": vector.cosine }, digits(vector.cosine))) : null,
    app.source.offline ? null : open].filter(Boolean);
}

function said(before, after) {
  if (before.said === null) return make("div");
  return make("dl", { class: "compare" }, make("dt", {}, t("saidBefore")), make("dd", { "data-said": "before" }, before.said),
    make("dt", {}, t("saidAfter")), make("dd", { "data-said": "after" }, after.said));
}

// The five likeliest tokens after the change, and those before, at the chosen position.
function topTokens(app, before, after) {
  const at = ({ positions }) => positions.find(({ position }) => position === app.position)?.top ?? [];
  if (!at(after).length) return [];
  const then = new Map(at(before).map(({ id, p }) => [id, p])), now = new Map(at(after).map(({ id, p }) => [id, p]));
  const names = new Map([...at(after), ...at(before)].map(({ id, token }) => [id, token]));
  const rows = [...names].map(([id, name]) => ({ id, name, share: now.get(id) ?? 0, before: then.get(id) ?? 0 }));
  return [make("h3", {}, positionName(app.pass, app.position)), bars(rows, 1)];
}
