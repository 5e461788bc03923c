// A grid of numbers as a heat map.
// In: rows x columns of values with names. Out: a canvas; pointing (or the arrow keys) tells a value, a click a row.
// The picture is drawn once, one pixel a value, and stretched; only a small frame moves with the pointer.

import { make, fill, digits } from "./dom.js";
import { paint, rangeOf, colourOf, inkOn } from "./colours.js";
import { t } from "./words.js";

const LARGEST = { width: 44, height: 32 };  // CSS pixels of one cell
const WRITTEN = 40;                         // a cell so wide also says its number
const TALLEST = 620;                        // CSS pixels of a whole map
const LETTERS = 12;

// grid: { values, rows, columns, rowNames, columnNames, kind, range, about, from }; row 0 is the tensor's row `from`
export class HeatMap {
  constructor(onrow) {
    this.onrow = onrow;
    this.canvas = make("canvas", { tabindex: 0, role: "img", class: "heat-canvas" });
    this.frame = make("div", { class: "heat-frame", hidden: true });
    this.readout = make("output", { class: "readout" });
    this.legend = make("div", { class: "legend" });
    this.element = make("div", { class: "heat" },
      make("div", { class: "heat-scroll" }, make("div", { class: "heat-stage" }, this.canvas, this.frame)),
      make("div", { class: "heat-foot" }, this.readout, this.legend));
    this.canvas.addEventListener("pointermove", (event) => this.point(this.cellAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(this.chosen));
    this.canvas.addEventListener("click", (event) => this.choose(this.cellAt(event)));
    this.canvas.addEventListener("keydown", (event) => this.walk(event));
    new ResizeObserver(() => this.grid && this.element.clientWidth !== this.drawnWidth && this.render())
      .observe(this.element);
  }

  show(grid) {
    this.grid = { kind: "signed", ...grid };
    this.range = grid.range ?? rangeOf(grid.values, this.grid.kind);
    this.chosen = null;
    this.canvas.setAttribute("aria-label", [grid.about, t("hoverHint")].filter(Boolean).join(": "));
    this.render();
    this.point(null);
  }

  // Sizes, then the picture, then the names beside it.
  render() {
    this.drawnWidth = this.element.clientWidth;
    if (!this.drawnWidth) return;
    this.layout();
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.drawHidden(pen);
    this.drawCells(pen);
    this.drawValues(pen);
    this.drawNames(pen);
    this.drawLegend();
    this.placeFrame();
    this.canvas.dataset.drawn = `${this.grid.rows} × ${this.grid.columns}`;
  }

  layout() {
    const { rows, columns, rowNames, columnNames } = this.grid;
    const pen = this.canvas.getContext("2d");
    pen.font = this.font();
    this.left = rowNames ? Math.min(this.drawnWidth * 0.3, 12 + widest(pen, rowNames)) : 0;
    const overhang = columnNames ? Math.min(40, 0.7 * pen.measureText(shorten(columnNames.at(-1))).width) : 2;
    const room = Math.max(60, this.drawnWidth - this.left - overhang - 2);
    this.cellWidth = Math.min(LARGEST.width, Math.max(room / columns, Math.min(1, 8000 / columns)));
    this.cellHeight = Math.min(LARGEST.height, (this.grid.tallest ?? TALLEST) / rows);
    if (this.grid.square) this.cellHeight = this.cellWidth = Math.min(this.cellWidth, TALLEST / rows);
    this.tilted = columnNames && widest(pen, columnNames) + 2 > this.cellWidth;
    this.namesAbove = columnNames && this.cellWidth >= 3;
    this.top = !this.namesAbove ? 8 : this.tilted ? Math.min(96, 14 + 0.8 * widest(pen, columnNames)) : 20;
    this.width = Math.ceil(this.left + this.cellWidth * columns + overhang);
    this.height = Math.ceil(this.top + this.cellHeight * rows + 2);
  }

  font() {
    return `${LETTERS}px ${getComputedStyle(document.body).fontFamily}`;
  }

  // What the mask hides shows as hatched paper.
  drawHidden(pen) {
    const { left, top } = this, width = this.cellWidth * this.grid.columns, height = this.cellHeight * this.grid.rows;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    pen.beginPath();
    for (let x = -height; x < width; x += 7) {
      pen.moveTo(left + x, top + height);
      pen.lineTo(left + x + height, top);
    }
    pen.strokeStyle = this.colour("--line");
    pen.stroke();
    pen.restore();
  }

  drawValues(pen) {
    const { values, rows, columns, kind } = this.grid;
    if (this.cellWidth < WRITTEN || this.cellHeight < 18 || rows * columns > 400) return;
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    Object.assign(pen, { textAlign: "center", textBaseline: "middle" });
    for (let i = 0; i < values.length; i++) {
      if (!Number.isFinite(values[i])) continue;
      pen.fillStyle = inkOn(values[i], kind, this.range);
      const [row, column] = [Math.floor(i / columns) + 0.5, (i % columns) + 0.5];
      pen.fillText(short(values[i]), this.left + column * this.cellWidth, this.top + row * this.cellHeight);
    }
  }

  colour(name) {
    return getComputedStyle(this.element).getPropertyValue(name);
  }

  drawCells(pen) {
    const { values, rows, columns, kind } = this.grid;
    const picture = new ImageData(columns, rows);
    paint(values, new Uint32Array(picture.data.buffer), kind, this.range);
    const small = new OffscreenCanvas(columns, rows);
    small.getContext("2d").putImageData(picture, 0, 0);
    pen.imageSmoothingEnabled = this.cellWidth < 1 || this.cellHeight < 1;
    pen.drawImage(small, this.left, this.top, this.cellWidth * columns, this.cellHeight * rows);
    pen.strokeStyle = this.colour("--line");
    pen.strokeRect(this.left - 0.5, this.top - 0.5, this.cellWidth * columns + 1, this.cellHeight * rows + 1);
  }

  // Names stand at every cell, or at every so-manieth where cells are small.
  drawNames(pen) {
    const { rowNames, columnNames, rows, columns } = this.grid;
    pen.font = this.font();
    pen.fillStyle = this.colour("--soft");
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (let row = 0; rowNames && row < rows; row += Math.ceil(13 / this.cellHeight)) {
      pen.fillText(shorten(rowNames[row]), this.left - 6, this.top + (row + 0.5) * this.cellHeight, this.left - 8);
    }
    if (!this.namesAbove) return;
    for (let column = 0; column < columns; column += Math.ceil(13 / this.cellWidth)) {
      this.drawColumnName(pen, shorten(columnNames[column]), this.left + (column + 0.5) * this.cellWidth);
    }
  }

  // A name that does not fit its column leans.
  drawColumnName(pen, name, x) {
    const leans = pen.measureText(name).width + 2 > this.cellWidth;
    pen.save();
    pen.translate(x, this.top - (leans ? 6 : 10));
    pen.textAlign = leans ? "left" : "center";
    if (leans) pen.rotate(-0.85);
    pen.fillText(name, 0, 0);
    pen.restore();
  }

  drawLegend() {
    const [low, high, cut] = this.range;
    const stops = Array.from({ length: 7 }, (_, i) =>
      colourOf(low + (i / 6) * (high - low), this.grid.kind, this.range));
    const bar = make("span", { class: "legend-bar" });
    bar.style.background = `linear-gradient(to right, ${stops.join(",")})`;
    const least = (cut && low ? "≤ " : "") + digits(low), most = (cut ? "≥ " : "") + digits(high);
    fill(this.legend, make("span", {}, least), bar, make("span", {}, most));
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - this.top) / this.cellHeight);
    const column = Math.floor((event.clientX - box.left - this.left) / this.cellWidth);
    const { rows, columns } = this.grid;
    if (row < 0 || row >= rows || column >= columns || (column < 0 && event.type !== "click")) return null;
    return { row, column: Math.max(0, column) };
  }

  // The value under the pointer, in words.
  point(cell) {
    this.pointed = cell;
    this.placeFrame();
    if (!cell) {
      delete this.readout.dataset.value;
      return fill(this.readout, make("span", { class: "soft" }, t("hoverHint")));
    }
    const value = this.grid.values[cell.row * this.grid.columns + cell.column];
    Object.assign(this.readout.dataset, { row: cell.row, column: cell.column, value });
    return fill(this.readout, `${this.nameOf("row", cell.row)} · ${this.nameOf("column", cell.column)} = `,
      make("strong", {}, digits(value)));
  }

  placeFrame() {
    this.frame.hidden = !this.pointed;
    if (!this.pointed) return;
    const { row, column } = this.pointed;
    const size = (cells) => `${Math.max(3, cells)}px`;
    Object.assign(this.frame.style, {
      left: `${this.left + column * this.cellWidth}px`, top: `${this.top + row * this.cellHeight}px`,
      width: size(this.cellWidth), height: size(this.cellHeight),
    });
  }

  nameOf(axis, at) {
    const [names, from] = axis === "row" ? [this.grid.rowNames, this.grid.from ?? 0] : [this.grid.columnNames, 0];
    return names ? `${shorten(names[at])} (${from + at})` : `${t(axis)} ${from + at}`;
  }

  choose(cell) {
    if (!cell) return;
    this.chosen = cell;
    this.point(cell);
    this.onrow?.(cell.row);
  }

  walk(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter" && this.chosen) this.onrow?.(this.chosen.row);
    if (!move) return;
    const { row, column } = this.chosen ?? { row: 0, column: -move[1] };
    const clamp = (at, size) => Math.max(0, Math.min(size - 1, at));
    this.chosen = { row: clamp(row + move[0], this.grid.rows), column: clamp(column + move[1], this.grid.columns) };
    this.point(this.chosen);
    event.preventDefault();
    event.stopPropagation();
  }
}

// Two digits that fit a cell: .12, −1.3, 24.
function short(value) {
  const size = Math.abs(value);
  const text = size >= 10 ? value.toFixed(0) : size >= 1 ? value.toFixed(1) : value.toFixed(2).replace("0.", ".");
  return text.replace("-", "−");
}

function widest(pen, names) {
  let width = 0;
  for (const name of names) width = Math.max(width, pen.measureText(shorten(name)).width);
  return width;
}

export function shorten(name, most = 14) {
  const letters = [...name];
  return letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : name;
}

// A row of the map as readable numbers; of a very wide one, the beginning.
export function numbers({ values, columns, rowNames, columnNames, from = 0 }, row) {
  const shown = values.subarray(row * columns, row * columns + Math.min(columns, 1024));
  const name = (column) => make("span", { class: "soft" }, columnNames ? shorten(columnNames[column]) : String(column));
  const items = Array.from(shown, (value, column) =>
    make("li", { "data-column": column, "data-value": value }, name(column), digits(value)));
  return make("figure", { class: "numbers", "data-row": row },
    make("figcaption", {}, [`${t("row")} ${from + row}`, rowNames?.[row]].filter(Boolean).join(" · ")),
    make("ol", {}, ...items));
}

// Numbers that name something (ids, chosen experts) are read, not coloured.
export function wholeNumbers({ values, rows, columns, rowNames, columnNames }) {
  const cell = (row, column) => {
    const value = values[row * columns + column];
    return make("td", { "data-row": row, "data-column": column, "data-value": value }, String(value));
  };
  const line = (row) => make("tr", {}, rowNames ? make("th", {}, rowNames[row]) : null,
    ...Array.from({ length: columns }, (_, column) => cell(row, column)));
  const names = (columnNames ?? []).map((name) => make("th", {}, name));
  const heading = columnNames ? make("tr", {}, rowNames ? make("th") : null, ...names) : null;
  const lines = Array.from({ length: rows }, (_, row) => line(row));
  return make("div", { class: "lens" }, make("table", {}, heading, ...lines));
}
