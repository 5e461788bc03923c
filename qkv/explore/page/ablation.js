// Ablation of heads, sublayers, layers and positions, and token swaps.
// A button for each part of the model; below, output and predictions before and after.
// Edits are in app.edits, written as in qkv/explore/edits.py: head:decoder.0.attn.3.

import { make, fill, formatNumber } from "./dom.js";
import { button, note } from "./controls.js";
import { t } from "./words.js";
import { card } from "./card.js";
import { bars, atMost } from "./bars.js";
import { requestName, latestOnly } from "./source.js";
import { positionName } from "./sides.js";
import { swapControl } from "./swap.js";

export function ablationCard(app) {
  const result = make("div", { class: "change card-content" }), latest = latestOnly();
  const show = async () => {
    const content = await latest(effect(app));
    if (content) fill(result, ...content);
  };
  const update = () => app.guard(show());
  const load = async () => {
    await update();  // an error is shown at the top; the buttons stay, to undo the edit
    const more = app.source.offline ? note(t("onlyOne"), { "data-note": "only-one" }) : swapControl(app, update);
    return [buttonGrid(app, update), more, result];
  };
  return card(app, "ablation", t("ablation"), t("ablationAbout"), load);
}

function buttonGrid(app, update) {
  const rows = app.model.stacks.flatMap(({ name, layers }) => [
    ...(app.model.supports.position_ablation ? [[t(name), [[null, [[`positions:${name}`, t("positionsOf")]]]]]] : []),
    ...layers.map((layer, index) => [`${t(name)} ${t("layer", index)}`, partsOf(name, layer, index)])]);
  const element = make("div", { class: "ablation" });
  const press = (edit) => {
    toggle(app, edit);
    mark(app, element);
    update();
  };
  element.append(...rows.map(([label, parts]) => buttonRow(label, parts, press)));
  mark(app, element);
  return element;
}

// An offline file has recorded each ablation alone: there, a second one replaces the first.
function toggle({ edits, source }, edit) {
  const was = edits.delete(edit);
  if (source.offline) edits.clear();
  if (!was) edits.add(edit);
}

// Edits of the open pass itself cannot be undone here.
function mark({ pass, edits }, grid) {
  for (const element of grid.querySelectorAll("button")) {
    const { edit } = element.dataset;
    element.disabled = pass.edits.includes(edit);
    element.setAttribute("aria-pressed", String(!element.disabled && !edits.has(edit)));
  }
}

// [[name of a part, [[edit, label], ...]], ...] of a layer: the layer, then each sublayer and its heads.
function partsOf(stack, layer, index) {
  const edits = (part, heads) => [[`layer:${stack}.${index}.${part}`, t("wholePart")],
    ...Array.from({ length: heads ?? 0 }, (_, head) => [`head:${stack}.${index}.${part}.${head}`, String(head)])];
  const cross = layer.cross_heads ? [[t("partCross"), edits("cross", layer.cross_heads)]] : [];
  return [[null, [[`layer:${stack}.${index}`, t("partLayer")]]],
    [t("partAttn"), edits("attn", layer.n_heads)], ...cross, [t("partFfn"), edits("ffn")]];
}

function buttonRow(label, parts, press) {
  const editButton = (name) => ([edit, text]) => button(text, () => press(edit), {
    "data-edit": edit, "aria-label": [label, name, text].filter(Boolean).join(" · ") });
  const groups = parts.map(([name, edits]) => make("span", { class: "ablation-part" },
    name ? make("span", { class: "soft" }, name) : null, ...edits.map(editButton(name))));
  return make("div", { class: "ablation-row" }, make("b", {}, label), ...groups);
}

async function effect(app) {
  if (!app.edits.size) return [note(t("noEdits"))];
  const edits = [...app.edits].sort();
  const { before, after, vector } = await app.source.json(
    requestName(`pass/${app.pass.id}/change`, { edits: edits.join(",") }));
  const open = button(t("openEdited"), () => openEdited(app, edits));
  return [generated(before, after), ...topTokens(app, before, after), vector ? similarityLine(vector) : null,
    app.source.offline ? null : open];
}

// Open the edited model as a pass of its own; app.edits then are edits to that pass.
function openEdited(app, edits) {
  app.edits.clear();
  app.open({ text: app.pass.text, edits: [...new Set([...app.pass.edits, ...edits])].sort() });
}

function generated(before, after) {
  if (before.generated === null) return null;
  return make("dl", { class: "compare" },
    make("dt", {}, t("generatedBefore")), make("dd", { "data-generated": "before" }, before.generated),
    make("dt", {}, t("generatedAfter")), make("dd", { "data-generated": "after" }, after.generated));
}

function similarityLine({ cosine }) {
  return make("p", {}, `${t("similarity")}: `, make("b", { "data-value": cosine }, formatNumber(cosine)));
}

// The five most probable tokens before and after, at the selected position.
function topTokens(app, before, after) {
  const top = ({ positions }) => positions.find(({ position }) => position === app.position)?.top;
  if (!before.positions.length) return [];  // no language-model head
  if (!top(before)) return [note(t("firstPositions", before.positions.length), { "data-note": "first-positions" })];
  const key = app.pass.family === "translator" ? "probabilityAt" : "probabilityAfter";
  const title = t(key, positionName(app.pass, app.position));
  return [make("h3", {}, title), bars(compared(top(before), top(after)), 1)];
}

// Only the top five are known before and after: others have no bar or no mark.
function compared(before, after) {
  const probs = (tokens) => new Map(tokens.map(({ id, p }) => [id, p]));
  const then = probs(before), now = probs(after), unknown = { fraction: 0, label: atMost(after.at(-1).p) };
  const names = new Map([...after, ...before].map(({ id, token }) => [id, token]));
  return [...names].map(([id, name]) =>
    ({ id, name, before: then.get(id), ...(now.has(id) ? { fraction: now.get(id) } : unknown) }));
}
