// Attention as lines between words.
// In: weights with the names of both sides. Out: two columns of words; the thicker a line, the stronger the look.
// Choosing a word at the left keeps only its lines.

import { make, draw } from "./dom.js";
import { t } from "./words.js";
import { shorten } from "./heat.js";

const STEP = 34, WIDE = 560, BOX = 150, MOST = 60;

// grid: { values, rows, columns, rowNames, columnNames }; chosen: a row or null
export function lineDrawing(grid, chosen, onchoose) {
  const rows = Math.min(grid.rows, MOST), columns = Math.min(grid.columns, MOST);
  const height = Math.max(rows, columns) * STEP + 8;
  const picture = draw("svg", { class: "lines", viewBox: `0 0 ${WIDE} ${height}`, role: "group" },
    draw("g", {}, ...allLinks(grid, rows, columns, chosen)),
    ...Array.from({ length: rows }, (_, row) => wordBox(grid.rowNames[row], 1, row, row === chosen, () => onchoose(row === chosen ? null : row))),
    ...Array.from({ length: columns }, (_, column) => wordBox(grid.columnNames[column], WIDE - BOX - 1, column, false)));
  const cut = rows < grid.rows || columns < grid.columns;
  return make("div", {}, cut ? make("p", { class: "soft small" }, t("tooLongLines", MOST, Math.max(grid.rows, grid.columns))) : null, picture);
}

function allLinks(grid, rows, columns, chosen) {
  const links = [];
  for (let row = 0; row < rows; row++) {
    if (chosen !== null && row !== chosen) continue;
    for (let column = 0; column < columns; column++) {
      const weight = grid.values[row * grid.columns + column];
      if (weight > (chosen === null ? 0.06 : 0.004)) links.push(lookLine(row, column, weight));
    }
  }
  return links;
}

function lookLine(row, column, weight) {
  const [from, to] = [row, column].map((at) => 4 + (at + 0.5) * STEP - 2);
  const path = `M${BOX + 2} ${from} C${BOX + 110} ${from}, ${WIDE - BOX - 110} ${to}, ${WIDE - BOX - 2} ${to}`;
  return draw("path", { class: "link", d: path, "stroke-width": (0.5 + 6 * weight).toFixed(2), "stroke-opacity": Math.min(1, 0.12 + weight).toFixed(2),
    "data-row": row, "data-column": column, "data-value": weight });
}

function wordBox(name, x, at, chosen, onclick) {
  const press = onclick && ((event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), onclick()));
  return draw("g", { class: `word${chosen ? " chosen" : ""}`, transform: `translate(${x} ${4 + at * STEP})`, ...(onclick ? { tabindex: 0, role: "button", "data-row": at, onclick, onkeydown: press } : {}) },
    draw("rect", { width: BOX, height: STEP - 6, rx: 7 }), draw("text", { x: BOX / 2, y: 19, "text-anchor": "middle" }, shorten(name, 16)));
}
