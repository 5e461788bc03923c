// A matrix as a heat map on a canvas.
// Hovering or the arrow keys show a value, a click selects a row.
// The image is drawn once, one pixel per value, and scaled; only a frame moves with the pointer.

import { make, fill, formatNumber } from "./dom.js";
import { paint, rangeOf, colorOf, textColorOn } from "./colors.js";
import { t } from "./words.js";

const MAX_CELL = { width: 44, height: 32 };  // CSS pixels
const MIN_LABELED_WIDTH = 40;                // CSS pixels of a cell that also has its value as text
const MAX_HEIGHT = 620;                      // CSS pixels of the heat map
const FONT_SIZE = 12;

// grid: { values, rows, columns, rowNames, columnNames, kind, range, about, from }; row 0 is the tensor's row `from`
export class HeatMap {
  constructor(onrow) {
    this.onrow = onrow;
    this.canvas = make("canvas", { tabindex: 0, role: "img", class: "heatmap-canvas" });
    this.frame = make("div", { class: "heatmap-frame", hidden: true });
    this.readout = make("output", { class: "readout" });
    this.legend = make("div", { class: "legend" });
    this.element = make("div", { class: "heatmap" },
      make("div", { class: "heatmap-scroll" }, make("div", { class: "heatmap-area" }, this.canvas, this.frame)),
      make("div", { class: "heatmap-foot" }, this.readout, this.legend));
    this.canvas.addEventListener("pointermove", (event) => this.point(this.cellAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(this.selected));
    this.canvas.addEventListener("click", (event) => this.select(this.cellAt(event)));
    this.canvas.addEventListener("keydown", (event) => this.moveByKey(event));
    new ResizeObserver(() => this.grid && this.element.clientWidth !== this.drawnWidth && this.render())
      .observe(this.element);
  }

  show(grid) {
    this.grid = { kind: "signed", ...grid };
    this.range = grid.range ?? rangeOf(grid.values, this.grid.kind);
    this.selected = null;
    this.canvas.setAttribute("aria-label", [grid.about, t("hoverHint")].filter(Boolean).join(": "));
    this.render();
    this.point(null);
  }

  // Draw cells, values, names and legend.
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
    this.drawMasked(pen);
    this.drawCells(pen);
    this.drawValues(pen);
    this.drawNames(pen);
    this.drawLegend();
    this.moveFrame();
    this.canvas.dataset.drawn = `${this.grid.rows} × ${this.grid.columns}`;
  }

  layout() {
    const { rows, columns, rowNames, columnNames } = this.grid;
    const pen = this.canvas.getContext("2d");
    pen.font = this.font();
    this.left = rowNames ? Math.min(this.drawnWidth * 0.3, 12 + widest(pen, rowNames)) : 0;
    const overhang = columnNames ? Math.min(40, 0.7 * pen.measureText(shorten(columnNames.at(-1))).width) : 2;
    const available = Math.max(60, this.drawnWidth - this.left - overhang - 2);
    this.cellWidth = Math.min(MAX_CELL.width, Math.max(available / columns, Math.min(1, 8000 / columns)));
    this.cellHeight = Math.min(MAX_CELL.height, (this.grid.maxHeight ?? MAX_HEIGHT) / rows);
    if (this.grid.square) this.cellHeight = this.cellWidth = Math.min(this.cellWidth, MAX_HEIGHT / rows);
    this.tilted = columnNames && widest(pen, columnNames) + 2 > this.cellWidth;
    this.namesAbove = columnNames && this.cellWidth >= 3;
    this.top = !this.namesAbove ? 8 : this.tilted ? Math.min(96, 14 + 0.8 * widest(pen, columnNames)) : 20;
    this.width = Math.ceil(this.left + this.cellWidth * columns + overhang);
    this.height = Math.ceil(this.top + this.cellHeight * rows + 2);
  }

  font() {
    return `${FONT_SIZE}px ${getComputedStyle(document.body).fontFamily}`;
  }

  // Hatching, visible where masked cells are transparent.
  drawMasked(pen) {
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
    pen.strokeStyle = this.color("--line");
    pen.stroke();
    pen.restore();
  }

  drawValues(pen) {
    const { values, rows, columns, kind } = this.grid;
    if (this.cellWidth < MIN_LABELED_WIDTH || this.cellHeight < 18 || rows * columns > 400) return;
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    Object.assign(pen, { textAlign: "center", textBaseline: "middle" });
    for (let i = 0; i < values.length; i++) {
      if (!Number.isFinite(values[i])) continue;
      pen.fillStyle = textColorOn(values[i], kind, this.range);
      const [row, column] = [Math.floor(i / columns) + 0.5, (i % columns) + 0.5];
      pen.fillText(short(values[i]), this.left + column * this.cellWidth, this.top + row * this.cellHeight);
    }
  }

  color(name) {
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
    pen.strokeStyle = this.color("--line");
    pen.strokeRect(this.left - 0.5, this.top - 0.5, this.cellWidth * columns + 1, this.cellHeight * rows + 1);
  }

  // Names at every cell, or at every n-th one if cells are small.
  drawNames(pen) {
    const { rowNames, columnNames, rows, columns } = this.grid;
    pen.font = this.font();
    pen.fillStyle = this.color("--soft");
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

  // A name that is wider than its column is rotated.
  drawColumnName(pen, name, x) {
    const rotated = pen.measureText(name).width + 2 > this.cellWidth;
    pen.save();
    pen.translate(x, this.top - (rotated ? 6 : 10));
    pen.textAlign = rotated ? "left" : "center";
    if (rotated) pen.rotate(-0.85);
    pen.fillText(name, 0, 0);
    pen.restore();
  }

  drawLegend() {
    const [low, high, clipped] = this.range;
    const stops = Array.from({ length: 7 }, (_, i) =>
      colorOf(low + (i / 6) * (high - low), this.grid.kind, this.range));
    const bar = make("span", { class: "legend-bar" });
    bar.style.background = `linear-gradient(to right, ${stops.join(",")})`;
    const minimum = (clipped && low ? "≤ " : "") + formatNumber(low);
    const maximum = (clipped ? "≥ " : "") + formatNumber(high);
    fill(this.legend, make("span", {}, minimum), bar, make("span", {}, maximum));
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - box.top - this.top) / this.cellHeight);
    const column = Math.floor((event.clientX - box.left - this.left) / this.cellWidth);
    const { rows, columns } = this.grid;
    if (row < 0 || row >= rows || column >= columns || (column < 0 && event.type !== "click")) return null;
    return { row, column: Math.max(0, column) };
  }

  // Show the value of a cell.
  point(cell) {
    this.current = cell;
    this.moveFrame();
    if (!cell) {
      delete this.readout.dataset.value;
      return fill(this.readout, make("span", { class: "soft" }, t("hoverHint")));
    }
    const value = this.grid.values[cell.row * this.grid.columns + cell.column];
    Object.assign(this.readout.dataset, { row: cell.row, column: cell.column, value });
    return fill(this.readout, `${this.nameOf("row", cell.row)} · ${this.nameOf("column", cell.column)} = `,
      make("strong", {}, formatNumber(value)));
  }

  moveFrame() {
    this.frame.hidden = !this.current;
    if (!this.current) return;
    const { row, column } = this.current;
    const size = (cells) => `${Math.max(3, cells)}px`;
    Object.assign(this.frame.style, {
      left: `${this.left + column * this.cellWidth}px`, top: `${this.top + row * this.cellHeight}px`,
      width: size(this.cellWidth), height: size(this.cellHeight),
    });
  }

  nameOf(axis, index) {
    const [names, from] = axis === "row" ? [this.grid.rowNames, this.grid.from ?? 0] : [this.grid.columnNames, 0];
    return names ? `${shorten(names[index])} (${from + index})` : `${t(axis)} ${from + index}`;
  }

  select(cell) {
    if (!cell) return;
    this.selected = cell;
    this.point(cell);
    this.onrow?.(cell.row);
  }

  moveByKey(event) {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.key === "Enter" && this.selected) this.onrow?.(this.selected.row);
    if (!move) return;
    const { row, column } = this.selected ?? { row: 0, column: -move[1] };
    const clamp = (index, size) => Math.max(0, Math.min(size - 1, index));
    this.selected = { row: clamp(row + move[0], this.grid.rows), column: clamp(column + move[1], this.grid.columns) };
    this.point(this.selected);
    event.preventDefault();
    event.stopPropagation();
  }
}

// Two digits that fit into a cell: .12, −1.3, 24.
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

export function shorten(name, limit = 14) {
  const characters = [...name];
  return characters.length > limit ? `${characters.slice(0, limit - 1).join("")}…` : name;
}

// A row of the heat map as text; at most 1,024 values.
export function rowValues({ values, columns, rowNames, columnNames, from = 0 }, row) {
  const part = values.subarray(row * columns, row * columns + Math.min(columns, 1024));
  const name = (column) => make("span", { class: "soft" }, columnNames ? shorten(columnNames[column]) : String(column));
  const items = Array.from(part, (value, column) =>
    make("li", { "data-column": column, "data-value": value }, name(column), formatNumber(value)));
  return make("figure", { class: "row-numbers", "data-row": row },
    make("figcaption", {}, [`${t("row")} ${from + row}`, rowNames?.[row]].filter(Boolean).join(" · ")),
    make("ol", {}, ...items));
}

// Ids and indices (such as selected experts) as a table.
export function valueTable({ values, rows, columns, rowNames, columnNames }) {
  const cell = (row, column) => {
    const value = values[row * columns + column];
    return make("td", { "data-row": row, "data-column": column, "data-value": value }, String(value));
  };
  const line = (row) => make("tr", {}, rowNames ? make("th", {}, rowNames[row]) : null,
    ...Array.from({ length: columns }, (_, column) => cell(row, column)));
  const names = (columnNames ?? []).map((name) => make("th", {}, name));
  const heading = columnNames ? make("tr", {}, rowNames ? make("th") : null, ...names) : null;
  const lines = Array.from({ length: rows }, (_, row) => line(row));
  return make("div", { class: "table-scroll" }, make("table", {}, heading, ...lines));
}
