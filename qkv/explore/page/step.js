// The numbers of one step.
// In: a step of the walk. Out: its shape and a heat map of its tensor, fetched when it is asked for; or its tokens, or bars.
// A tensor with heads shows one head at a time; a very large one shows some rows at a time.

import { make, fill, choices } from "./dom.js";
import { t } from "./words.js";
import { HeatMap, numbers } from "./heat.js";
import { named } from "./source.js";
import { bars, largest } from "./bars.js";
import { tokensOf, tokenRow, positionName, writtenTokens } from "./sides.js";

const MOST = 1_000_000;  // numbers fetched for one picture
const BEST = 30;         // logits shown, of a whole vocabulary

export class StepNumbers {
  constructor(app) {
    this.app = app;
    this.heat = new HeatMap((row) => this.showRow(row));
    this.element = make("div", { class: "step-numbers" });
    this.head = 0;
    this.which = 0;
    this.first = 0;
  }

  async show(step) {
    if (step !== this.step) Object.assign(this, { which: 0, first: 0 });
    this.step = step;
    if (step.kind === "tokens") return this.put(...this.everySide());
    if (step.kind === "next") return this.showNext();
    const tensor = step.tensors[this.which];
    if (!tensor) return this.put();
    if (tensor.axes.at(-1) === "vocab") return this.showLogits(tensor);
    return this.showTensor(tensor);
  }

  // A later step may have been chosen while numbers were on their way; then they are not shown.
  async arrive(promise) {
    const { step, which, head, first } = this, { position } = this.app;
    const answer = await promise;
    const same = step === this.step && which === this.which && head === this.head && first === this.first && position === this.app.position;
    return same ? answer : null;
  }

  put(...children) {
    fill(this.element, ...children);
    this.element.dataset.step = this.step.key;
    this.element.dataset.head = this.head;
  }

  everySide() {
    return Object.entries(this.app.pass.sides).flatMap(([name, side]) => [make("p", { class: "soft small" }, t(this.app.pass.family === "translator" ? name : "text")), tokenRow(side)]);
  }

  async showNext() {
    const { position, pass } = this.app;
    const top = await this.arrive(this.app.source.json(`pass/${pass.id}/top/${position}`));
    if (!top) return;
    const rows = top.tokens.map(({ token, p, id }) => ({ name: token, share: p, id }));
    this.put(make("p", { class: "soft small" }, t("chanceOf", top.after)), bars(rows));
  }

  async showTensor(tensor) {
    const heads = tensor.shape.length > 2 ? tensor.shape[0] : 0;
    this.head = Math.min(this.head, Math.max(0, heads - 1));
    const shape = heads ? tensor.shape.slice(1) : tensor.shape;
    const window = this.windowOf(shape);
    const { data } = await this.arrive(this.app.source.tensor(named(`pass/${this.app.pass.id}/tensor/${tensor.name}`,
      { index: heads ? this.head : undefined, rows: window && window.join(":") }))) ?? {};
    if (!data) return;
    const [from, to] = window ?? [0, shape.length > 1 ? shape[0] : 1];
    this.grid = this.gridOf(tensor, data, shape, from, to);
    this.put(this.shapeLine(tensor), this.pickers(tensor, heads), window ? this.pager(shape[0], from, to) : null, this.numbersOf(tensor));
  }

  // Rows to ask for, when all would be too many; they contain the chosen position.
  windowOf(shape) {
    const width = shape.at(-1);
    if (shape.length < 2 || shape[0] * width <= MOST) return null;
    const rows = Math.max(1, Math.floor(MOST / width));
    return [this.first, Math.min(shape[0], this.first + rows)];
  }

  gridOf(tensor, values, shape, from, to) {
    const [rowAxis, columnAxis] = shape.length > 1 ? tensor.axes.slice(-2) : [null, tensor.axes.at(-1)];
    const namesOf = (axis) => tokensOf(this.app.pass, tensor.labels[axis]);
    return { values, rows: to - from, columns: shape.at(-1), rowNames: rowAxis && namesOf(rowAxis)?.slice(from, to),
      columnNames: namesOf(columnAxis), kind: tensor.scale === "share" ? "share" : "signed",
      square: rowAxis === "query" && columnAxis === "key", rowSide: tensor.labels[rowAxis], from };
  }

  numbersOf({ scale }) {
    if (scale === "id" || scale === "index") return wholeNumbers(this.grid);
    this.rowPlace = make("div", { class: "row-place" });
    const holder = make("div", {}, this.heat.element, this.rowPlace);
    requestAnimationFrame(() => {
      this.heat.show(this.grid);
      const row = this.app.position - this.grid.from;
      if (this.grid.rowSide === "target" && row >= 0 && row < this.grid.rows) this.heat.choose({ row, column: this.bestColumn(row) });
    });
    return holder;
  }

  bestColumn(row) {
    const values = this.grid.values.subarray(row * this.grid.columns, (row + 1) * this.grid.columns);
    return values.indexOf(values.reduce((a, b) => Math.max(a, b)));
  }

  shapeLine({ caption, shape, axes, path }) {
    const sizes = shape.map((size, i) => `${axes[i]} ${size}`).join(" × ");
    return make("p", { class: "shape", "data-shape": shape.join(",") }, make("b", {}, caption), `  ${sizes || "1"}`, path ? make("span", { class: "path" }, path) : null);
  }

  pickers(tensor, heads) {
    const again = (change) => (value) => { Object.assign(this, change(value)); this.app.guard(this.show(this.step)); };
    const tensors = this.step.tensors.map(({ caption }, i) => [i, caption]);
    const numbered = Array.from({ length: heads }, (_, i) => [i, String(i)]);
    return make("div", { class: "row" },
      tensors.length > 1 ? choices(tensors, this.which, t("tensor"), again((which) => ({ which }))) : null,
      heads > 1 ? make("span", { class: "row heads" }, make("span", { class: "soft small" }, t("head")), choices(numbered, this.head, t("head"), again((head) => ({ head })))) : null);
  }

  pager(rows, from, to) {
    const turn = (first) => () => { this.first = first; this.app.guard(this.show(this.step)); };
    return make("div", { class: "row" },
      make("button", { type: "button", disabled: from === 0, onclick: turn(Math.max(0, from - (to - from))) }, "‹"),
      make("span", { class: "soft small" }, t("rowsOf", from, to - 1, rows)),
      make("button", { type: "button", disabled: to >= rows, onclick: turn(to) }, "›"));
  }

  showRow(row) {
    const { grid } = this;
    const shares = grid.kind === "share" && grid.columnNames;
    const values = grid.values.subarray(row * grid.columns, (row + 1) * grid.columns);
    const writing = this.step.part === "cross" && writtenTokens(this.app.pass)[row + grid.from];
    fill(this.rowPlace,
      shares ? make("p", { class: "small" }, writing ? t("looksAtWriting", writing) : t("looksAt", grid.rowNames?.[row] ?? "")) : null,
      shares ? bars(largest(values, grid.columnNames, 6)) : null, numbers(grid, row));
  }

  // Of a whole vocabulary, the highest logits of the chosen position, for a few rows around it.
  async showLogits(tensor) {
    const { position, pass, source } = this.app;
    const first = Math.max(0, Math.min(position - 8, tensor.shape[0] - 16)), last = Math.min(tensor.shape[0], first + 16);
    const [top, part] = await this.arrive(Promise.all([source.json(named(`pass/${pass.id}/top/${position}`, { k: BEST })),
      source.tensor(named(`pass/${pass.id}/tensor/${tensor.name}`, last - first < tensor.shape[0] ? { rows: `${first}:${last}` } : {}))])) ?? [];
    if (!part) return;
    const values = new Float32Array((last - first) * top.tokens.length);
    for (let i = 0; i < values.length; i++) values[i] = part.data[Math.floor(i / top.tokens.length) * tensor.shape.at(-1) + top.tokens[i % top.tokens.length].id];
    this.grid = { values, rows: last - first, columns: top.tokens.length, rowNames: tokensOf(pass, "target").slice(first, last),
      columnNames: top.tokens.map(({ token }) => token), kind: "signed", rowSide: "target", from: first };
    this.put(this.shapeLine(tensor), make("p", { class: "soft small" }, t("bestOf", top.tokens.length, tensor.shape.at(-1), positionName(pass, position))), this.numbersOf(tensor));
  }
}

// Numbers that name something (ids, chosen experts) are read, not coloured.
function wholeNumbers({ values, rows, columns, rowNames, columnNames }) {
  const cell = (row, column) => make("td", { "data-row": row, "data-column": column, "data-value": values[row * columns + column] }, String(values[row * columns + column]));
  const lines = Array.from({ length: rows }, (_, row) => make("tr", {}, rowNames ? make("th", {}, rowNames[row]) : null,
    ...Array.from({ length: columns }, (_, column) => cell(row, column))));
  const heading = columnNames ? make("tr", {}, rowNames ? make("th") : null, ...columnNames.map((name) => make("th", {}, name))) : null;
  return make("div", { class: "lens" }, make("table", {}, heading, ...lines));
}
