// The numbers of one step.
// In: a step of the walk. Out: its shape and a heat map of its tensor, fetched by need; or its tokens, or bars.
// A tensor with heads shows one head at a time; a very large one shows some rows at a time.

import { make, fill } from "./dom.js";
import { choices, button, note } from "./controls.js";
import { t, say } from "./words.js";
import { HeatMap, numbers, wholeNumbers } from "./heat.js";
import { named } from "./source.js";
import { bars, largest } from "./bars.js";
import { tokensOf, tokenRow, writtenTokens } from "./sides.js";

const MOST = 1_000_000;  // numbers fetched for one picture
const BEST = 30;         // logits shown, of a whole vocabulary
const AROUND = 16;       // rows of logits shown

export class StepNumbers {
  constructor(app) {
    this.app = app;
    this.heat = new HeatMap((row) => this.showRow(row));
    this.element = make("div", { class: "step-numbers" });
    Object.assign(this, { head: 0, which: 0, first: 0 });
  }

  async show(step) {
    if (step !== this.step) Object.assign(this, { which: 0, first: 0 });
    this.step = step;
    const tensor = step.tensors[this.which];
    if (step.kind === "tokens") return this.put(...this.everySide());
    if (step.kind === "next") return this.showNext();
    if (!tensor) return this.put();
    return tensor.axes.at(-1) === "vocab" ? this.showLogits(tensor) : this.showTensor(tensor);
  }

  // Another step may have been chosen while numbers were on their way; then they are not shown.
  async arrive(promise) {
    const wanted = () => [this.step.key, this.which, this.head, this.first, this.app.position].join(" ");
    const asked = wanted();
    const answer = await promise;
    return asked === wanted() ? answer : null;
  }

  name(rest) {
    return `pass/${this.app.pass.id}/${rest}`;
  }

  put(...children) {
    const group = this.focusedGroup();
    fill(this.element, ...children);
    Object.assign(this.element.dataset, { step: this.step.key, head: this.head });
    const chosen = group && this.element.querySelector(`[aria-label="${group}"] [aria-checked=true]`);
    chosen?.focus({ preventScroll: true });
  }

  // The name of the choices that have the focus: their buttons are made anew, and the next arrow key is still theirs.
  focusedGroup() {
    const { activeElement: focused } = document;
    return this.element.contains(focused) ? focused.closest("[role=radiogroup]")?.getAttribute("aria-label") : null;
  }

  everySide() {
    const title = (name) => t(this.app.pass.family === "translator" ? name : "text");
    return Object.entries(this.app.pass.sides).flatMap(([name, side]) => [note(title(name)), tokenRow(side)]);
  }

  async showNext() {
    const top = await this.arrive(this.app.source.json(this.name(`top/${this.app.position}`)));
    if (!top) return;
    const rows = top.tokens.map(({ token, p, id }) => ({ name: token, share: p, id }));
    this.put(note(t("chanceOf", top.after)), bars(rows));
  }

  async showTensor(tensor) {
    const heads = tensor.shape.length > 2 ? tensor.shape[0] : 0;
    const shape = heads ? tensor.shape.slice(1) : tensor.shape;
    this.head = Math.min(this.head, Math.max(0, heads - 1));
    const rows = this.rowsOf(shape);
    const query = { index: heads ? this.head : null, rows: rows && rows.join(":") };
    const part = await this.arrive(this.app.source.tensor(named(this.name(`tensor/${tensor.name}`), query)));
    if (!part) return;
    const [from, to] = rows ?? [0, shape.length > 1 ? shape[0] : 1];
    const about = this.step.part === "cross" && tensor.axes.includes("query") ? note(t("rowsWrite")) : null;
    this.put(this.shapeLine(tensor), about, this.pickers(heads), rows ? this.pager(shape[0], from, to) : null);
    this.showGrid(this.gridOf(tensor, part.data, from, to), tensor.scale);
  }

  // Which rows to ask for, when all would be too many.
  rowsOf(shape) {
    const width = shape.at(-1);
    if (shape.length < 2 || shape[0] * width <= MOST) return null;
    return [this.first, Math.min(shape[0], this.first + Math.max(1, Math.floor(MOST / width)))];
  }

  gridOf({ axes, shape, labels, scale }, values, from, to) {
    const [rowAxis, columnAxis] = shape.length > 1 ? axes.slice(-2) : [null, axes[0]];
    const writes = this.step.part === "cross" && rowAxis === "query";  // as in the attention view
    const names = (axis) => tokensOf(this.app.pass, labels[axis]);
    return { values, rows: to - from, columns: shape.at(-1), from, kind: scale === "share" ? "share" : "signed",
      rowNames: (writes ? writtenTokens(this.app.pass) : names(rowAxis))?.slice(from, to),
      columnNames: names(columnAxis), rowSide: labels[rowAxis],
      square: rowAxis === "query" && columnAxis === "key" };
  }

  // Numbers that name something are read; all others are coloured, the chosen position's row also written out.
  showGrid(grid, scale) {
    if (scale === "id" || scale === "index") return this.element.append(wholeNumbers(grid));
    this.grid = grid;
    this.rowPlace = make("div", { class: "row-place" });
    this.element.append(this.heat.element, this.rowPlace);
    this.heat.show({ ...grid, about: say(this.app.model.kinds[this.step.kind].title) });
    const row = this.app.position - grid.from;
    if (grid.rowSide === "target" && row >= 0 && row < grid.rows) this.heat.choose({ row, column: this.best(row) });
    return null;
  }

  valuesOf(row) {
    return this.grid.values.subarray(row * this.grid.columns, (row + 1) * this.grid.columns);
  }

  best(row) {
    const values = this.valuesOf(row);
    return values.indexOf(values.reduce((a, b) => Math.max(a, b)));
  }

  shapeLine({ caption, shape, axes, path }) {
    const sizes = shape.map((size, i) => `${axes[i]} ${size}`).join(" × ");
    return make("p", { class: "shape", "data-shape": shape.join(",") },
      make("b", {}, caption), `  ${sizes || "1"}`, path ? make("span", { class: "path" }, path) : null);
  }

  // Which of the step's tensors, and which head.
  pickers(heads) {
    const pick = (key, options) => choices(options, this[key], t(key), (value) => this.again({ [key]: value }));
    const tensors = this.step.tensors.map(({ caption }, i) => [i, caption]);
    const numbered = Array.from({ length: heads }, (_, i) => [i, String(i + 1)]);
    return make("div", { class: "row" }, tensors.length > 1 ? pick("which", tensors) : null,
      heads > 1 ? make("span", { class: "row heads" }, make("span", { class: "soft small" }, t("head")),
        pick("head", numbered)) : null);
  }

  pager(rows, from, to) {
    return make("div", { class: "row" },
      button("‹", () => this.again({ first: Math.max(0, 2 * from - to) }), { disabled: from === 0 }),
      note(t("rowsOf", from, to - 1, rows)),
      button("›", () => this.again({ first: to }), { disabled: to >= rows }));
  }

  again(choice) {
    Object.assign(this, choice);
    this.app.guard(this.show(this.step));
  }

  showRow(row) {
    const { grid } = this, looks = grid.kind === "share" && grid.columnNames;
    const seen = looks ? bars(largest(this.valuesOf(row), grid.columnNames, 6)) : null;
    fill(this.rowPlace, looks ? make("p", { class: "small" }, this.lookTitle(row)) : null, seen, numbers(grid, row));
  }

  lookTitle(row) {
    return t(this.step.part === "cross" ? "looksAtWriting" : "looksAt", this.grid.rowNames?.[row] ?? "");
  }

  // Of a whole vocabulary, the highest logits of the chosen position, for some rows around it.
  async showLogits(tensor) {
    const { position, pass, source } = this.app, [length, vocabulary] = tensor.shape.slice(-2);
    const from = Math.max(0, Math.min(position - AROUND / 2, length - AROUND)), to = Math.min(length, from + AROUND);
    const rows = to - from < length ? `${from}:${to}` : null;
    const [top, part] = await this.arrive(Promise.all([
      source.json(named(this.name(`top/${position}`), { k: BEST })),
      source.tensor(named(this.name(`tensor/${tensor.name}`), { rows }))])) ?? [];
    if (!part) return;
    const ids = top.tokens.map(({ id }) => id), columnNames = top.tokens.map(({ token }) => token);
    const values = Float32Array.from({ length: (to - from) * ids.length }, (_, i) =>
      part.data[Math.floor(i / ids.length) * vocabulary + ids[i % ids.length]]);
    this.put(this.shapeLine(tensor), note(t("bestOf", ids.length, vocabulary, top.after)));
    this.showGrid({ values, rows: to - from, columns: ids.length, from, kind: "signed", columnNames,
      rowNames: tokensOf(pass, tensor.labels.token ?? "target")?.slice(from, to), rowSide: "target" });
  }
}
