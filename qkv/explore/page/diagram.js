// Diagram of the animation: tokens in one or two rows, with arcs and lines for attention weights.
// An SVG drawing; `show` draws one frame.
// The source of an encoder-decoder model is above its target; other models have a single row.

import { draw, fill } from "./dom.js";
import { pressable } from "./controls.js";
import { t } from "./words.js";
import { predictedTokens } from "./sides.js";

const HEIGHT = { source: 72, target: 158, end: 232 };  // middle of each row, and lower edge
const GAP = 8, HALF = 14;                              // between tokens; half the height of a token
const MIN_WEIGHT = 0.05;                               // smaller weights are not drawn

// onselect(index): a token of the selectable row was pressed
export class Diagram {
  constructor(pass, onselect) {
    this.both = pass.family === "translator";
    const [[side, { tokens }]] = Object.entries(pass.sides);
    this.rows = this.layOut(this.both ? { source: tokens, target: predictedTokens(pass) } : { [side]: tokens });
    this.links = draw("g");
    this.selectable = Object.keys(this.rows).at(-1);  // the side of which a token can be selected
    const press = (side, index) => onselect && side === this.selectable ? pressable(() => onselect(index)) : {};
    this.chips = Object.fromEntries(Object.entries(this.rows).map(([side, row]) =>
      [side, row.map((token, index) => this.chip(side, token, press(side, index)))]));
    this.svg = draw("svg", { class: "animation-picture", role: "group", "aria-label": t("animation") },
      this.links, ...Object.values(this.chips).flat());
    this.svg.style.width = `${this.width}px`;
    this.crop(false);
  }

  // The position of each token: measured widths, centered rows.
  layOut(rows) {
    const pen = new OffscreenCanvas(1, 1).getContext("2d");
    pen.font = `14px ${getComputedStyle(document.body).fontFamily}`;
    const sized = Object.entries(rows).map(([side, tokens]) =>
      [side, tokens.map((token) => ({ token, width: pen.measureText(token).width + 16 }))]);
    const widthOf = (row) => row.reduce((sum, { width }) => sum + width + GAP, -GAP);
    this.width = Math.max(320, ...sized.map(([, row]) => widthOf(row))) + GAP;
    return Object.fromEntries(sized.map(([side, row]) => {
      let next = (this.width - widthOf(row)) / 2;
      const position = ({ token, width }) => {
        const x = next;
        next += width + GAP;
        return { token, width, x };
      };
      return [side, row.map(position)];
    }));
  }

  chip(side, { token, x, width }, attributes) {
    const transform = `translate(${x} ${this.yOf(side) - HALF})`;
    return draw("g", { class: "animation-token", transform, "data-token": token, ...attributes },
      attributes.role ? draw("title", {}, token) : null,
      draw("rect", { width, height: 2 * HALF, rx: 7 }),
      draw("text", { x: width / 2, y: 19, "text-anchor": "middle" }, token));
  }

  yOf(side) {
    return this.both ? HEIGHT[side] : HEIGHT.source;
  }

  middle(side, index) {
    const { x, width } = this.rows[side][index];
    return x + width / 2;
  }

  // A still picture of two rows has no arcs above and below, so its height is smaller.
  crop(whole) {
    const top = whole || !this.both ? 0 : HEIGHT.source - 18;
    const bottom = !this.both ? HEIGHT.source + 18 : whole ? HEIGHT.end : HEIGHT.target + 18;
    this.svg.setAttribute("viewBox", `0 ${top} ${this.width} ${bottom - top}`);
  }

  // visible: number of target tokens that are shown
  show({ arcs, lines, visible }) {
    fill(this.links, ...(arcs?.mean ? this.arcs(arcs) : []), ...(lines ? this.lines(lines) : []));
    const row = lines?.row ?? arcs?.row;
    this.chips[this.selectable].forEach((chip, i) => {
      chip.classList.toggle("pending", this.both && i >= visible);
      chip.classList.toggle("query", i === row);
    });
    this.reveal(row ?? 0);
  }

  // Scroll to the query token if the diagram is wider than its container.
  reveal(index) {
    const container = this.svg.parentNode, width = container?.clientWidth ?? 0;
    if (width && width < this.width) container.scrollLeft = this.middle(this.selectable, index) - width / 2;
  }

  // Arcs of all rows or of one. Target row i has read token i - 1, so its first key, <bos>, is not drawn.
  arcs({ side, mean: { shape: [rows, columns], data }, row }) {
    const below = this.both && side === "target", shift = below ? 1 : 0;
    const links = [];
    for (let i = row ?? 0; i < (row === undefined ? rows : row + 1); i++) {
      for (let j = shift; j < columns; j++) {
        const path = arc(this.middle(side, i), this.middle(side, j - shift), this.yOf(side), below);
        if (i !== j - shift) links.push(link(path, data[i * columns + j]));
      }
    }
    return links;
  }

  lines({ mean: { shape: [, columns], data }, row }) {
    const from = this.middle("target", row), [low, high] = [HEIGHT.target - HALF, HEIGHT.source + HALF];
    return Array.from({ length: columns }, (_, column) => {
      const to = this.middle("source", column);
      const path = `M${from} ${low} C${from} ${low - 34}, ${to} ${high + 34}, ${to} ${high}`;
      return link(path, data[row * columns + column]);
    });
  }
}

function arc(from, to, y, below) {
  const bend = Math.min(52, 14 + Math.abs(from - to) * 0.3) * (below ? 1 : -1);
  const edge = y + (below ? HALF : -HALF);
  return `M${from} ${edge} C${from} ${edge + bend}, ${to} ${edge + bend}, ${to} ${edge}`;
}

function link(path, weight) {
  if (weight < MIN_WEIGHT) return null;
  return draw("path", { class: "link", d: path, "data-value": weight,
    "stroke-width": 0.6 + 4.5 * weight, "stroke-opacity": 0.15 + 0.85 * weight });
}
