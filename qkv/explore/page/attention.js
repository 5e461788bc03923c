// The attention view: thumbnails of all heads and one large picture, as a matrix or as lines.
// A second sentence can be shown beside the first.
// `app.selection` is the kind of attention, layer, head and form that are shown.

import { make, fill } from "./dom.js";
import { choices, button, note } from "./controls.js";
import { t, localized } from "./words.js";
import { HeatMap } from "./heatmap.js";
import { bars, largest } from "./bars.js";
import { lineDrawing } from "./lines.js";
import { thumbnailGrid, pressHeads } from "./thumbnails.js";
import { mergeWords } from "./matrix.js";
import { rowNames, rowWords, columnSide, tokensOf } from "./sides.js";

export function showAttention(app) {
  const { attention } = app.pass;
  if (!attention.length) return make("p", { class: "card soft" }, t("noAttention"));
  app.selection ??= { ...initialMode(attention), unit: "tokens", form: "matrix", row: null, other: null };
  if (!attention.some(({ name }) => name === app.selection.kind)) app.selection.kind = attention.at(-1).name;
  return new AttentionView(app).element;
}

// Initially the head trained by guided alignment, if there is one. Without it, single cross-attention heads do not
// align words; the mean of all heads does so best.
function initialMode(attention) {
  const cross = attention.find(({ name }) => name === "cross");
  if (cross?.guided) return { mode: "head", ...cross.guided };
  return { mode: cross ? "all" : "head" };
}

class AttentionView {
  constructor(app) {
    this.app = app;
    this.selection = app.selection;
    this.modes = make("span");
    this.side = make("div", { class: "card" });
    this.panels = make("div", { class: "pair" });
    const large = make("div", { class: "card" }, this.compareForm(), this.panels);
    this.element = make("div", {}, this.tools(), make("div", { class: "attention" }, this.side, large));
    this.drawSide();
    this.drawModes();
    this.draw();
  }

  tools() {
    const kinds = this.app.pass.attention.map(({ name, title }) => [name, localized(title)]);
    return make("div", { class: "row tools" },
      kinds.length > 1 ? this.radio("kind", t("attentionKind"), kinds) : null,
      this.modes,
      this.radio("unit", t("unit"), [["tokens", t("tokens")], ["words", t("wholeWords")]]),
      this.radio("form", t("form"), [["matrix", t("matrix")], ["lines", t("lines")]]));
  }

  radio(key, name, options) {
    return choices(options, this.selection[key], name, (value) => this.change({ [key]: value }));
  }

  // Cross-attention has no rollout: its rows and columns are different tokens.
  drawModes() {
    const modes = [["all", t("allLayers")], ["mean", t("oneLayer")], ["head", t("oneHead")], ["rollout", t("rollout")]];
    if (this.selection.kind === "cross") modes.pop();
    if (!modes.some(([mode]) => mode === this.selection.mode)) this.selection.mode = "all";
    fill(this.modes, this.radio("mode", t("mode"), modes));
  }

  change(choice) {
    Object.assign(this.selection, choice);
    if (choice.kind || choice.unit) this.selection.row = null;
    if (choice.kind) this.drawSide();
    if (choice.kind) this.drawModes();
    pressHeads(this.side, this.isSelected());
    this.draw();
  }

  // A predicate: whether a head is in the large picture; for all layers no head is marked.
  isSelected() {
    const { layer, head, mode } = this.selection;
    return (other) => other.layer === layer && (mode === "mean" || (mode === "head" && other.head === head));
  }

  current() {
    return this.app.pass.attention.find(({ name }) => name === this.selection.kind);
  }

  drawSide() {
    const { layers } = this.current();
    if (!layers.some(({ layer, heads }) => layer === this.selection.layer && this.selection.head < heads)) {
      Object.assign(this.selection, { layer: layers.at(-1).layer, head: 0 });
    }
    const select = (layer, head) => this.selectHead(layer, head);
    fill(this.side, make("h3", {}, t("allHeads")), thumbnailGrid(this.app, this.current(), select));
    pressHeads(this.side, this.isSelected());
  }

  // If the mean of a layer is shown, a click selects the layer, otherwise the head.
  selectHead(layer, head) {
    if (this.selection.mode !== "mean") this.selection.mode = "head";
    this.drawModes();
    this.change({ layer, head });
  }

  compareForm() {
    const { source, pass } = this.app;
    const others = source.offline ? source.passes.map(({ text }) => text).filter((text) => text !== pass.text) : null;
    if (others?.length === 0) return null;
    const field = others ? make("select", { name: "other" }, ...others.map((text) => make("option", {}, text)))
      : make("input", { type: "text", name: "other", value: this.otherText() });
    const submit = (event) => {
      event.preventDefault();
      this.compareWith(field.value);
    };
    this.stop = button(t("compareStop"), () => this.change({ other: null }), { hidden: !this.selection.other });
    return make("form", { class: "row compare-form", onsubmit: submit },
      make("label", { class: "row" }, make("span", { class: "soft small" }, t("compare")), field),
      make("button", {}, t("compareRun")), this.stop);
  }

  otherText() {
    const { model, pass } = this.app;
    return this.selection.other?.text ?? model.examples.find((text) => text !== pass.text) ?? pass.text;
  }

  async compareWith(text) {
    const other = await this.app.guard(this.app.source.open({ text }));
    if (other) this.change({ other });
  }

  async draw() {
    const passes = [this.app.pass, ...(this.selection.other ? [this.selection.other] : [])];
    const request = this.request = {};
    const grids = await this.app.guard(Promise.all(passes.map((pass) => this.gridOf(pass))));
    if (!grids || request !== this.request) return;
    this.panels.classList.toggle("two", grids.length > 1);
    if (this.stop) this.stop.hidden = grids.length === 1;
    fill(this.panels, ...grids.map((grid, i) => this.panel(grid, passes[i])));
  }

  async gridOf(pass) {
    const { kind, unit } = this.selection, side = columnSide(kind);
    const { shape: [rows, columns], data } = await this.app.source.tensor(this.requestName(pass));
    const names = { rowNames: rowNames(pass, kind), columnNames: tokensOf(pass, side) };
    const grid = { values: data, rows, columns, ...names };
    return unit === "words" ? mergeWords(grid, rowWords(pass, kind), pass.sides[side].words) : grid;
  }

  requestName({ id }) {
    const { kind, layer, head, mode } = this.selection;
    if (mode === "rollout") return `pass/${id}/rollout/${kind}`;
    if (mode === "all") return `pass/${id}/attention/${kind}/mean`;
    return `pass/${id}/attention/${kind}/${layer}/${mode === "head" ? head : "mean"}`;
  }

  title() {
    const { layer, head, mode } = this.selection;
    if (mode === "rollout") return `${t("rollout")} · ${t("rolloutAbout")}`;
    if (mode === "all") return `${localized(this.current().title)} · ${t("allLayersAbout")}`;
    const heads = t(mode === "head" ? "headNumber" : "headsMean", head);
    return `${localized(this.current().title)} · ${t("layer", layer)} · ${heads}`;
  }

  panel(grid, pass) {
    const { kind, layer, head, mode, unit, form, row, other } = this.selection;
    const below = make("div", { class: "weights" });
    const select = (selected) => {
      this.selection.row = selected;
      fill(below, this.weights(grid, selected));
    };
    const picture = form === "lines" ? this.lines(grid, select) : this.matrix(grid, select);
    select(row !== null && row < grid.rows ? row : null);
    const selection = [kind, layer, head, mode, unit, form].join(" ");
    return make("section", { class: "panel", "data-text": pass.text, "data-selection": selection },
      other ? make("h3", {}, pass.text) : null, note(this.title()),
      note(t(kind === "cross" ? "rowsArePredictions" : "rowsAreQueries")), picture, below);
  }

  matrix(grid, select) {
    const heatmap = new HeatMap(select);
    heatmap.show({ ...grid, kind: "probability", square: true, about: this.title() });
    return heatmap.element;
  }

  lines(grid, select) {
    const holder = make("div");
    const show = (row) => {
      select(row);
      fill(holder, lineDrawing(grid, row, show));
    };
    fill(holder, lineDrawing(grid, this.selection.row, show));
    return holder;
  }

  weights(grid, row) {
    if (row === null) return this.selection.form === "lines" ? note(t("clickWord")) : null;
    const values = grid.values.subarray(row * grid.columns, (row + 1) * grid.columns);
    const title = t(this.selection.kind === "cross" ? "weightsOfPrediction" : "weightsOf", grid.rowNames[row]);
    return make("div", { "data-row": row, "data-name": grid.rowNames[row] },
      make("h3", {}, title), bars(largest(values, grid.columnNames)));
  }
}
