// The attention view: all heads small, one large; as a matrix or as lines; two sentences side by side.
// In: the attentions of a pass. Out: the view; `app.look` remembers what is looked at.
// Only the large picture's numbers are fetched in full.

import { make, fill, choices } from "./dom.js";
import { t, say } from "./words.js";
import { HeatMap } from "./heat.js";
import { bars, largest } from "./bars.js";
import { lineDrawing } from "./lines.js";
import { miniatures } from "./minis.js";
import { mergeWords } from "./matrix.js";
import { rowNames, rowWords, columnSide, tokensOf } from "./sides.js";

export function showAttention(app) {
  const { attention } = app.pass;
  if (!attention.length) return make("p", { class: "card soft" }, t("noAttention"));
  app.look ??= { which: attention.at(-1).name, layer: attention.at(-1).layers.at(-1).layer, head: 0, mode: "head", unit: "pieces", form: "matrix", row: null, other: null };
  if (!attention.some(({ name }) => name === app.look.which)) app.look.which = attention[0].name;
  return new AttentionView(app).element;
}

class AttentionView {
  constructor(app) {
    this.app = app;
    this.look = app.look;
    this.place = make("div", { class: "pair" });
    this.side = make("div", { class: "card" });
    this.element = make("div", {}, this.tools(), make("div", { class: "attention" }, this.side, make("div", { class: "card" }, this.compareForm(), this.place)));
    this.drawSide();
    this.draw();
  }

  tools() {
    const pick = (options, key) => choices(options, this.look[key], key, (value) => this.change({ [key]: value }));
    const whiches = this.app.pass.attention.map(({ name, title }) => [name, say(title)]);
    return make("div", { class: "row tools" },
      whiches.length > 1 ? pick(whiches, "which") : null,
      pick([["head", t("oneHead")], ["mean", t("mean")], ["rollout", t("rollout")]], "mode"),
      pick([["pieces", t("pieces")], ["words", t("wholeWords")]], "unit"),
      pick([["matrix", t("matrix")], ["lines", t("lines")]], "form"));
  }

  change(choice) {
    Object.assign(this.look, choice);
    if (choice.which || choice.unit) this.look.row = null;
    if (choice.which) this.drawSide();
    this.draw();
  }

  current() {
    return this.app.pass.attention.find(({ name }) => name === this.look.which);
  }

  drawSide() {
    const one = this.current();
    if (!one.layers.some(({ layer, heads }) => layer === this.look.layer && this.look.head < heads)) {
      Object.assign(this.look, { layer: one.layers.at(-1).layer, head: 0 });
    }
    fill(this.side, make("h3", {}, t("allHeads")),
      miniatures(this.app, one, this.look, (layer, head) => {
        if (this.look.mode !== "mean") this.look.mode = "head";
        this.change({ layer, head });
        this.element.querySelector(`[data-choice="${this.look.mode}"]`).parentNode.querySelectorAll("button")
          .forEach((button) => button.setAttribute("aria-checked", String(button.dataset.choice === this.look.mode)));
      }));
  }

  compareForm() {
    const { source, pass } = this.app;
    const others = source.offline ? source.passes.map(({ text }) => text).filter((text) => text !== pass.text) : [];
    if (source.offline && !others.length) return null;
    const field = source.offline ? make("select", { name: "other" }, ...others.map((text) => make("option", {}, text)))
      : make("input", { type: "text", name: "other", value: this.look.other?.text ?? this.app.model.examples.find((text) => text !== pass.text) ?? pass.text, "aria-label": t("compare") });
    return make("form", { class: "row compare-form", onsubmit: (event) => { event.preventDefault(); this.compareWith(field.value); } },
      make("label", { class: "soft small" }, t("compare")), field, make("button", {}, t("compareRun")),
      this.stop = make("button", { type: "button", hidden: !this.look.other, onclick: () => this.change({ other: null }) }, t("compareStop")));
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
    const { which, unit } = this.look;
    const { shape: [rows, columns], data } = await this.app.source.tensor(this.numbersName(pass));
    const grid = { values: data, rows, columns, rowNames: rowNames(pass, which), columnNames: tokensOf(pass, columnSide(which)) };
    return unit === "words" ? mergeWords(grid, rowWords(pass, which), pass.sides[columnSide(which)].words) : grid;
  }

  numbersName({ id }) {
    const { which, layer, head, mode } = this.look;
    if (mode === "rollout" && which !== "cross") return `pass/${id}/rollout/${which}`;
    return `pass/${id}/attention/${which}/${layer}/${mode === "head" ? head : "mean"}`;
  }

  title() {
    const { which, layer, head, mode } = this.look;
    if (mode === "rollout" && which !== "cross") return `${t("rollout")} · ${t("rolloutAbout")}`;
    return `${say(this.current().title)} · ${t("layer", layer + 1)} · ${mode === "head" ? t("headNumber", head) : t("mean")}`;
  }

  panel(grid, pass) {
    const below = make("div", { class: "looks" });
    const choose = (row) => { this.look.row = row; fill(below, this.looks(grid, row)); };
    const picture = this.look.form === "lines" ? this.lines(grid, choose) : this.matrix(grid, choose);
    choose(this.look.row < grid.rows ? this.look.row : null);
    return make("section", { class: "panel", "data-text": pass.text, "data-rows": grid.rows, "data-columns": grid.columns },
      this.look.other ? make("h3", {}, pass.text) : null, make("p", { class: "small soft" }, this.title()),
      picture, below, make("p", { class: "small soft" }, t(this.look.which === "cross" ? "rowsWrite" : "rowsLook")));
  }

  matrix(grid, choose) {
    const heat = new HeatMap(choose);
    requestAnimationFrame(() => heat.show({ ...grid, kind: "share", square: true }));
    return heat.element;
  }

  lines(grid, choose) {
    const holder = make("div");
    const show = (row) => { choose(row); fill(holder, lineDrawing(grid, row, show)); };
    fill(holder, lineDrawing(grid, this.look.row, show));
    return holder;
  }

  looks(grid, row) {
    if (row === null) return make("p", { class: "soft small" }, t("clickWord"));
    const values = grid.values.subarray(row * grid.columns, (row + 1) * grid.columns);
    const title = t(this.look.which === "cross" ? "looksAtWriting" : "looksAt", grid.rowNames[row]);
    return make("div", { "data-row": row, "data-name": grid.rowNames[row] }, make("h3", {}, title), bars(largest(values, grid.columnNames)));
  }
}
