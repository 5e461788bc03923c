// Values of one step: shape and heat map of its tensors, or its tokens, or a bar chart.
// Values are fetched when the step is selected.
// A tensor with heads shows one head at a time; a very large one a range of rows.

import { make, fill } from "./dom.js";
import { choices, button, note } from "./controls.js";
import { t, localized } from "./words.js";
import { HeatMap, rowValues, valueTable } from "./heatmap.js";
import { requestName } from "./source.js";
import { bars, largest } from "./bars.js";
import { tokensOf, tokenRow, predictedTokens } from "./sides.js";

const MAX_VALUES = 1_000_000;  // fetched for one heat map
const TOP_LOGITS = 30;         // columns of the heat map of logits
const LOGIT_ROWS = 16;

export class StepValues {
  constructor(app) {
    this.app = app;
    this.heatmap = new HeatMap((row) => this.showRow(row));
    this.element = make("div", { class: "step-values" });
    Object.assign(this, { head: 0, tensor: 0, first: 0 });
  }

  async show(step) {
    if (step !== this.step) Object.assign(this, { tensor: 0, first: 0 });
    this.step = step;
    const tensor = step.tensors[this.tensor];
    if (step.kind === "tokens") return this.replace(...this.everySide());
    if (step.kind === "next") return this.showNext();
    if (!tensor) return this.replace();
    return tensor.axes.at(-1) === "vocab" ? this.showLogits(tensor) : this.showTensor(tensor);
  }

  // The answer, or null if another step, tensor, head or position was selected meanwhile.
  async ifCurrent(promise) {
    const selection = () => [this.step.key, this.tensor, this.head, this.first, this.app.position].join(" ");
    const requested = selection();
    const answer = await promise;
    return requested === selection() ? answer : null;
  }

  name(rest) {
    return `pass/${this.app.pass.id}/${rest}`;
  }

  replace(...children) {
    const group = this.focusedGroup();
    fill(this.element, ...children);
    Object.assign(this.element.dataset, { step: this.step.key, head: this.head });
    const selected = group && this.element.querySelector(`[aria-label="${group}"] [aria-checked=true]`);
    selected?.focus({ preventScroll: true });
  }

  // The label of the focused radio group; its buttons are created again and keep the focus.
  focusedGroup() {
    const { activeElement: focused } = document;
    return this.element.contains(focused) ? focused.closest("[role=radiogroup]")?.getAttribute("aria-label") : null;
  }

  everySide() {
    const title = (name) => t(this.app.pass.family === "translator" ? name : "text");
    return Object.entries(this.app.pass.sides).flatMap(([name, side]) => [note(title(name)), tokenRow(side)]);
  }

  async showNext() {
    const top = await this.ifCurrent(this.app.source.json(this.name(`top/${this.app.position}`)));
    if (!top) return;
    const rows = top.tokens.map(({ token, p, id }) => ({ name: token, fraction: p, id }));
    this.replace(note(t("probabilityAfter", top.after)), bars(rows));
  }

  async showTensor(tensor) {
    const heads = tensor.shape.length > 2 ? tensor.shape[0] : 0;
    const shape = heads ? tensor.shape.slice(1) : tensor.shape;
    this.head = Math.min(this.head, Math.max(0, heads - 1));
    const rows = this.rowsOf(shape);
    const query = { index: heads ? this.head : null, rows: rows && rows.join(":") };
    const part = await this.ifCurrent(this.app.source.tensor(requestName(this.name(`tensor/${tensor.name}`), query)));
    if (!part) return;
    const [from, to] = rows ?? [0, shape.length > 1 ? shape[0] : 1];
    const about = this.step.part === "cross" && tensor.axes.includes("query") ? note(t("rowsArePredictions")) : null;
    this.replace(this.shapeLine(tensor), about, this.radios(heads), rows ? this.pager(shape[0], from, to) : null);
    this.showGrid(this.gridOf(tensor, part.data, from, to), tensor.scale);
  }

  // The range of rows to fetch, if all would be too many.
  rowsOf(shape) {
    const width = shape.at(-1);
    if (shape.length < 2 || shape[0] * width <= MAX_VALUES) return null;
    return [this.first, Math.min(shape[0], this.first + Math.max(1, Math.floor(MAX_VALUES / width)))];
  }

  gridOf({ axes, shape, labels, scale }, values, from, to) {
    const [rowAxis, columnAxis] = shape.length > 1 ? axes.slice(-2) : [null, axes[0]];
    const predicts = this.step.part === "cross" && rowAxis === "query";  // as in the attention view
    const names = (axis) => tokensOf(this.app.pass, labels[axis]);
    return { values, rows: to - from, columns: shape.at(-1), from,
      kind: scale === "probability" ? "probability" : "signed",
      rowNames: (predicts ? predictedTokens(this.app.pass) : names(rowAxis))?.slice(from, to),
      columnNames: names(columnAxis), rowSide: labels[rowAxis],
      square: rowAxis === "query" && columnAxis === "key" };
  }

  // Ids and indices as a table; other values as a heat map, with the row of the selected position as text.
  showGrid(grid, scale) {
    if (scale === "id" || scale === "index") return this.element.append(valueTable(grid));
    this.grid = grid;
    this.rowElement = make("div", { class: "row-values" });
    this.element.append(this.heatmap.element, this.rowElement);
    this.heatmap.show({ ...grid, about: localized(this.app.model.kinds[this.step.kind].title) });
    const row = this.app.position - grid.from;
    const isShown = grid.rowSide === "target" && row >= 0 && row < grid.rows;
    if (isShown) this.heatmap.select({ row, column: this.argmax(row) });
    return null;
  }

  valuesOf(row) {
    return this.grid.values.subarray(row * this.grid.columns, (row + 1) * this.grid.columns);
  }

  argmax(row) {
    const values = this.valuesOf(row);
    return values.indexOf(values.reduce((a, b) => Math.max(a, b)));
  }

  shapeLine({ caption, shape, axes, path }) {
    const sizes = shape.map((size, i) => `${axes[i]} ${size}`).join(" × ");
    return make("p", { class: "shape", "data-shape": shape.join(",") },
      make("b", {}, caption), `  ${sizes || "1"}`, path ? make("span", { class: "path" }, path) : null);
  }

  // Radio groups for the tensor of the step and the head.
  radios(heads) {
    const radio = (key, options) => choices(options, this[key], t(key), (value) => this.select({ [key]: value }));
    const tensors = this.step.tensors.map(({ caption }, i) => [i, caption]);
    const numbered = Array.from({ length: heads }, (_, i) => [i, String(i)]);
    return make("div", { class: "row" }, tensors.length > 1 ? radio("tensor", tensors) : null,
      heads > 1 ? make("span", { class: "row heads" }, make("span", { class: "soft small" }, t("head")),
        radio("head", numbered)) : null);
  }

  pager(rows, from, to) {
    return make("div", { class: "row" },
      button("‹", () => this.select({ first: Math.max(0, 2 * from - to) }), { disabled: from === 0 }),
      note(t("rowsOf", from, to - 1, rows)),
      button("›", () => this.select({ first: to }), { disabled: to >= rows }));
  }

  select(choice) {
    Object.assign(this, choice);
    this.app.guard(this.show(this.step));
  }

  showRow(row) {
    const { grid } = this, isWeights = grid.kind === "probability" && grid.columnNames;
    const title = isWeights ? make("p", { class: "small" }, this.weightsTitle(row)) : null;
    const chart = isWeights ? bars(largest(this.valuesOf(row), grid.columnNames, 6)) : null;
    fill(this.rowElement, title, chart, rowValues(grid, row));
  }

  weightsTitle(row) {
    return t(this.step.part === "cross" ? "weightsOfPrediction" : "weightsOf", this.grid.rowNames?.[row] ?? "");
  }

  // The top logits of the selected position, for some rows around it.
  async showLogits(tensor) {
    const { position, pass, source } = this.app, [length, vocabSize] = tensor.shape.slice(-2);
    const from = Math.max(0, Math.min(position - LOGIT_ROWS / 2, length - LOGIT_ROWS));
    const to = Math.min(length, from + LOGIT_ROWS);
    const rows = to - from < length ? `${from}:${to}` : null;
    const [top, part] = await this.ifCurrent(Promise.all([
      source.json(requestName(this.name(`top/${position}`), { k: TOP_LOGITS })),
      source.tensor(requestName(this.name(`tensor/${tensor.name}`), { rows }))])) ?? [];
    if (!part) return;
    const ids = top.tokens.map(({ id }) => id), columnNames = top.tokens.map(({ token }) => token);
    const values = Float32Array.from({ length: (to - from) * ids.length }, (_, i) =>
      part.data[Math.floor(i / ids.length) * vocabSize + ids[i % ids.length]]);
    this.replace(this.shapeLine(tensor), note(t("topOf", ids.length, vocabSize, top.after)));
    this.showGrid({ values, rows: to - from, columns: ids.length, from, kind: "signed", columnNames,
      rowNames: tokensOf(pass, tensor.labels.token ?? "target")?.slice(from, to), rowSide: "target" });
  }
}
