// The attention view: all heads small, one large; as a matrix or as lines; two sentences side by side.
// In: the attentions of a pass. Out: the view; `app.look` remembers what is looked at.
// Only the large picture's numbers are fetched in full.

import { make, fill } from "./dom.js";
import { choices, button, note } from "./controls.js";
import { t, say } from "./words.js";
import { HeatMap } from "./heat.js";
import { bars, largest } from "./bars.js";
import { lineDrawing } from "./lines.js";
import { miniatures, pressHeads } from "./minis.js";
import { mergeWords } from "./matrix.js";
import { rowNames, rowWords, columnSide, tokensOf } from "./sides.js";

export function showAttention(app) {
  const { attention } = app.pass;
  if (!attention.length) return make("p", { class: "card soft" }, t("noAttention"));
  app.look ??= { ...firstHead(attention), unit: "pieces", form: "matrix", row: null, other: null };
  if (!attention.some(({ name }) => name === app.look.which)) app.look.which = attention.at(-1).name;
  return new AttentionView(app).element;
}

// What is shown first: the head that guided alignment has trained, if there is one. Other heads of cross-attention have
// their own tasks, and the word alignment is seen best in the mean of all of them.
function firstHead(attention) {
  const cross = attention.find(({ name }) => name === "cross");
  if (cross?.guided) return { mode: "head", ...cross.guided };
  return { mode: cross ? "all" : "head" };
}

class AttentionView {
  constructor(app) {
    this.app = app;
    this.look = app.look;
    this.modes = make("span");
    this.side = make("div", { class: "card" });
    this.place = make("div", { class: "pair" });
    const large = make("div", { class: "card" }, this.compareForm(), this.place);
    this.element = make("div", {}, this.tools(), make("div", { class: "attention" }, this.side, large));
    this.drawSide();
    this.drawModes();
    this.draw();
  }

  tools() {
    const whiches = this.app.pass.attention.map(({ name, title }) => [name, say(title)]);
    return make("div", { class: "row tools" },
      whiches.length > 1 ? this.pick("which", t("whichAttention"), whiches) : null,
      this.modes,
      this.pick("unit", t("unit"), [["pieces", t("pieces")], ["words", t("wholeWords")]]),
      this.pick("form", t("form"), [["matrix", t("matrix")], ["lines", t("lines")]]));
  }

  pick(key, name, options) {
    return choices(options, this.look[key], name, (value) => this.change({ [key]: value }));
  }

  // Of cross-attention there is no rollout: its rows and columns are different tokens.
  drawModes() {
    const modes = [["all", t("allLayers")], ["mean", t("oneLayer")], ["head", t("oneHead")], ["rollout", t("rollout")]];
    if (this.look.which === "cross") modes.pop();
    if (!modes.some(([mode]) => mode === this.look.mode)) this.look.mode = "all";
    fill(this.modes, this.pick("mode", t("mode"), modes));
  }

  change(choice) {
    Object.assign(this.look, choice);
    if (choice.which || choice.unit) this.look.row = null;
    if (choice.which) this.drawSide();
    if (choice.which) this.drawModes();
    pressHeads(this.side, this.inside());
    this.draw();
  }

  // Whether a head is in the large picture; that of all layers is not marked.
  inside() {
    const { layer, head, mode } = this.look;
    return (one) => one.layer === layer && (mode === "mean" || (mode === "head" && one.head === head));
  }

  current() {
    return this.app.pass.attention.find(({ name }) => name === this.look.which);
  }

  drawSide() {
    const { layers } = this.current();
    if (!layers.some(({ layer, heads }) => layer === this.look.layer && this.look.head < heads)) {
      Object.assign(this.look, { layer: layers.at(-1).layer, head: 0 });
    }
    const choose = (layer, head) => this.chooseHead(layer, head);
    fill(this.side, make("h3", {}, t("allHeads")), miniatures(this.app, this.current(), choose));
    pressHeads(this.side, this.inside());
  }

  // A layer that is clicked while its mean is shown gives its mean; else the head itself.
  chooseHead(layer, head) {
    if (this.look.mode !== "mean") this.look.mode = "head";
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
    this.stop = button(t("compareStop"), () => this.change({ other: null }), { hidden: !this.look.other });
    return make("form", { class: "row compare-form", onsubmit: submit },
      make("label", { class: "row" }, make("span", { class: "soft small" }, t("compare")), field),
      make("button", {}, t("compareRun")), this.stop);
  }

  otherText() {
    const { model, pass } = this.app;
    return this.look.other?.text ?? model.examples.find((text) => text !== pass.text) ?? pass.text;
  }

  async compareWith(text) {
    const other = await this.app.guard(this.app.source.open({ text }));
    if (other) this.change({ other });
  }

  async draw() {
    const passes = [this.app.pass, ...(this.look.other ? [this.look.other] : [])];
    const wanted = this.wanted = {};
    const grids = await this.app.guard(Promise.all(passes.map((pass) => this.gridOf(pass))));
    if (!grids || wanted !== this.wanted) return;
    this.place.classList.toggle("two", grids.length > 1);
    if (this.stop) this.stop.hidden = grids.length === 1;
    fill(this.place, ...grids.map((grid, i) => this.panel(grid, passes[i])));
  }

  async gridOf(pass) {
    const { which, unit } = this.look, side = columnSide(which);
    const { shape: [rows, columns], data } = await this.app.source.tensor(this.numbersName(pass));
    const names = { rowNames: rowNames(pass, which), columnNames: tokensOf(pass, side) };
    const grid = { values: data, rows, columns, ...names };
    return unit === "words" ? mergeWords(grid, rowWords(pass, which), pass.sides[side].words) : grid;
  }

  numbersName({ id }) {
    const { which, layer, head, mode } = this.look;
    if (mode === "rollout") return `pass/${id}/rollout/${which}`;
    if (mode === "all") return `pass/${id}/attention/${which}/mean`;
    return `pass/${id}/attention/${which}/${layer}/${mode === "head" ? head : "mean"}`;
  }

  title() {
    const { layer, head, mode } = this.look;
    if (mode === "rollout") return `${t("rollout")} · ${t("rolloutAbout")}`;
    if (mode === "all") return `${say(this.current().title)} · ${t("allLayersAbout")}`;
    const heads = t(mode === "head" ? "headNumber" : "headsMean", head + 1);
    return `${say(this.current().title)} · ${t("layer", layer + 1)} · ${heads}`;
  }

  panel(grid, pass) {
    const { which, layer, head, mode, unit, form, row, other } = this.look;
    const below = make("div", { class: "looks" });
    const choose = (chosen) => {
      this.look.row = chosen;
      fill(below, this.looks(grid, chosen));
    };
    const picture = form === "lines" ? this.lines(grid, choose) : this.matrix(grid, choose);
    choose(row !== null && row < grid.rows ? row : null);
    const shows = [which, layer, head, mode, unit, form].join(" ");
    return make("section", { class: "panel", "data-text": pass.text, "data-shows": shows },
      other ? make("h3", {}, pass.text) : null, note(this.title()),
      note(t(which === "cross" ? "rowsWrite" : "rowsLook")), picture, below);
  }

  matrix(grid, choose) {
    const heat = new HeatMap(choose);
    heat.show({ ...grid, kind: "share", square: true, about: this.title() });
    return heat.element;
  }

  lines(grid, choose) {
    const holder = make("div");
    const show = (row) => {
      choose(row);
      fill(holder, lineDrawing(grid, row, show));
    };
    fill(holder, lineDrawing(grid, this.look.row, show));
    return holder;
  }

  looks(grid, row) {
    if (row === null) return this.look.form === "lines" ? note(t("clickWord")) : null;
    const values = grid.values.subarray(row * grid.columns, (row + 1) * grid.columns);
    const title = t(this.look.which === "cross" ? "looksAtWriting" : "looksAt", grid.rowNames[row]);
    return make("div", { "data-row": row, "data-name": grid.rowNames[row] },
      make("h3", {}, title), bars(largest(values, grid.columnNames)));
  }
}
