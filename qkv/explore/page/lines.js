// Attention weights as lines between words.
// Two columns: queries at the left, keys at the right; the width of a line is its weight.
// Selecting a query shows only its lines.

import { make, draw, availableWidth } from "./dom.js";
import { note, pressable } from "./controls.js";
import { t } from "./words.js";
import { shorten } from "./heatmap.js";

const STEP = 34, WIDTH = 560, MAX_WORDS = 60;

// grid: { values, rows, columns, rowNames, columnNames }; selected: a row or null
export function lineDrawing(grid, selected, onselect) {
  const rows = Math.min(grid.rows, MAX_WORDS), columns = Math.min(grid.columns, MAX_WORDS);
  const width = availableWidth(WIDTH), box = Math.min(150, 0.34 * width);
  const queries = grid.rowNames.slice(0, rows).map((name, row) => queryBox(name, row, box, row === selected, onselect));
  const keys = grid.columnNames.slice(0, columns)
    .map((name, column) => wordBox(name, { x: width - box - 1, box }, column));
  const size = `0 0 ${width} ${Math.max(rows, columns) * STEP + 8}`;
  const picture = draw("svg", { class: "lines", viewBox: size, role: "group" },
    ...links(grid, rows, columns, selected).map((pair) => link(pair, box, width)), ...queries, ...keys);
  const longest = Math.max(grid.rows, grid.columns);
  return make("div", {}, longest > MAX_WORDS ? note(t("tooLongLines", MAX_WORDS, longest)) : null, picture);
}

// The pairs with a weight large enough to draw: [{ row, column, weight }, ...].
function links(grid, rows, columns, selected) {
  const minWeight = selected === null ? 0.06 : 0.004, pairs = [];
  for (let row = selected ?? 0; row < (selected === null ? rows : selected + 1); row++) {
    for (let column = 0; column < columns; column++) {
      const weight = grid.values[row * grid.columns + column];
      if (weight > minWeight) pairs.push({ row, column, weight });
    }
  }
  return pairs;
}

function link({ row, column, weight }, box, width) {
  const [from, to] = [row, column].map((index) => 2 + (index + 0.5) * STEP), bend = 0.4 * (width - 2 * box);
  const path = `M${box + 2} ${from} C${box + bend} ${from}, ${width - box - bend} ${to}, ${width - box - 2} ${to}`;
  return draw("path", { class: "link", d: path,
    "stroke-width": 0.5 + 6 * weight, "stroke-opacity": 0.12 + 0.88 * weight,
    "data-row": row, "data-column": column, "data-value": weight });
}

// A query can be selected; selecting it again deselects it.
function queryBox(name, row, box, selected, onselect) {
  return wordBox(name, { x: 1, box }, row, {
    class: selected ? "word selected" : "word", "aria-pressed": String(selected), "data-row": row,
    ...pressable(() => onselect(selected ? null : row)) });
}

function wordBox(name, { x, box }, index, attributes = { class: "key" }) {
  return draw("g", { transform: `translate(${x} ${4 + index * STEP})`, ...attributes }, draw("title", {}, name),
    draw("rect", { width: box, height: STEP - 6, rx: 7 }),
    draw("text", { x: box / 2, y: 19, "text-anchor": "middle" }, shorten(name, Math.floor(box / 9))));
}
