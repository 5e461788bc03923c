// Attention as lines between words.
// In: weights with the names of both sides. Out: two columns of words; the thicker a line, the stronger the look.
// Choosing a word at the left keeps only its lines.

import { make, draw, roomFor } from "./dom.js";
import { note, pressable } from "./controls.js";
import { t } from "./words.js";
import { shorten } from "./heat.js";

const STEP = 34, WIDE = 560, MOST = 60;

// grid: { values, rows, columns, rowNames, columnNames }; chosen: a row or null
export function lineDrawing(grid, chosen, onchoose) {
  const rows = Math.min(grid.rows, MOST), columns = Math.min(grid.columns, MOST);
  const wide = roomFor(WIDE), box = Math.min(150, 0.34 * wide);
  const lookers = grid.rowNames.slice(0, rows).map((name, row) => looker(name, row, box, row === chosen, onchoose));
  const seen = grid.columnNames.slice(0, columns)
    .map((name, column) => wordBox(name, { x: wide - box - 1, box }, column));
  const size = `0 0 ${wide} ${Math.max(rows, columns) * STEP + 8}`;
  const picture = draw("svg", { class: "lines", viewBox: size, role: "group" },
    ...links(grid, rows, columns, chosen).map((one) => link(one, box, wide)), ...lookers, ...seen);
  const longest = Math.max(grid.rows, grid.columns);
  return make("div", {}, longest > MOST ? note(t("tooLongLines", MOST, longest)) : null, picture);
}

// [{ row, column, weight }, ...] that are worth a line.
function links(grid, rows, columns, chosen) {
  const least = chosen === null ? 0.06 : 0.004, found = [];
  for (let row = chosen ?? 0; row < (chosen === null ? rows : chosen + 1); row++) {
    for (let column = 0; column < columns; column++) {
      const weight = grid.values[row * grid.columns + column];
      if (weight > least) found.push({ row, column, weight });
    }
  }
  return found;
}

function link({ row, column, weight }, box, wide) {
  const [from, to] = [row, column].map((at) => 2 + (at + 0.5) * STEP), bend = 0.4 * (wide - 2 * box);
  const path = `M${box + 2} ${from} C${box + bend} ${from}, ${wide - box - bend} ${to}, ${wide - box - 2} ${to}`;
  return draw("path", { class: "link", d: path,
    "stroke-width": 0.5 + 6 * weight, "stroke-opacity": 0.12 + 0.88 * weight,
    "data-row": row, "data-column": column, "data-value": weight });
}

// A word that looks can be pressed; pressed again, it lets go.
function looker(name, row, box, chosen, onchoose) {
  return wordBox(name, { x: 1, box }, row, {
    class: chosen ? "word chosen" : "word", "aria-pressed": String(chosen), "data-row": row,
    ...pressable(() => onchoose(chosen ? null : row)) });
}

function wordBox(name, { x, box }, at, having = { class: "seen" }) {
  return draw("g", { transform: `translate(${x} ${4 + at * STEP})`, ...having }, draw("title", {}, name),
    draw("rect", { width: box, height: STEP - 6, rx: 7 }),
    draw("text", { x: box / 2, y: 19, "text-anchor": "middle" }, shorten(name, Math.floor(box / 9))));
}
