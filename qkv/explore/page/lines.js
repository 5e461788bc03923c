// Attention as lines between words.
// In: weights with the names of both sides. Out: two columns of words; the thicker a line, the stronger the look.
// Choosing a word at the left keeps only its lines.

import { make, draw } from "./dom.js";
import { note } from "./controls.js";
import { t } from "./words.js";
import { shorten } from "./heat.js";

const STEP = 34, WIDE = 560, BOX = 150, MOST = 60;

// grid: { values, rows, columns, rowNames, columnNames }; chosen: a row or null
export function lineDrawing(grid, chosen, onchoose) {
  const rows = Math.min(grid.rows, MOST), columns = Math.min(grid.columns, MOST);
  const lookers = grid.rowNames.slice(0, rows).map((name, row) => looker(name, row, row === chosen, onchoose));
  const seen = grid.columnNames.slice(0, columns).map((name, column) => wordBox(name, WIDE - BOX - 1, column));
  const size = `0 0 ${WIDE} ${Math.max(rows, columns) * STEP + 8}`;
  const picture = draw("svg", { class: "lines", viewBox: size, role: "group" },
    ...links(grid, rows, columns, chosen), ...lookers, ...seen);
  const longest = Math.max(grid.rows, grid.columns);
  return make("div", {}, longest > MOST ? note(t("tooLongLines", MOST, longest)) : null, picture);
}

function links(grid, rows, columns, chosen) {
  const least = chosen === null ? 0.06 : 0.004, found = [];
  for (let row = chosen ?? 0; row < (chosen === null ? rows : chosen + 1); row++) {
    for (let column = 0; column < columns; column++) {
      const weight = grid.values[row * grid.columns + column];
      if (weight > least) found.push(link(row, column, weight));
    }
  }
  return found;
}

function link(row, column, weight) {
  const [from, to] = [row, column].map((at) => 2 + (at + 0.5) * STEP);
  const path = `M${BOX + 2} ${from} C${BOX + 110} ${from}, ${WIDE - BOX - 110} ${to}, ${WIDE - BOX - 2} ${to}`;
  return draw("path", { class: "link", d: path,
    "stroke-width": 0.5 + 6 * weight, "stroke-opacity": 0.12 + 0.88 * weight,
    "data-row": row, "data-column": column, "data-value": weight });
}

// A word that looks can be pressed; pressed again, it lets go.
function looker(name, row, chosen, onchoose) {
  const press = () => onchoose(chosen ? null : row);
  const onkeydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    press();
  };
  return wordBox(name, 1, row, {
    class: chosen ? "word chosen" : "word", tabindex: 0, role: "button", "data-row": row, onclick: press, onkeydown });
}

function wordBox(name, x, at, having = { class: "word" }) {
  return draw("g", { transform: `translate(${x} ${4 + at * STEP})`, ...having },
    draw("rect", { width: BOX, height: STEP - 6, rx: 7 }),
    draw("text", { x: BOX / 2, y: 19, "text-anchor": "middle" }, shorten(name, 16)));
}
