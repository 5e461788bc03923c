// The stage of the film: tokens in a row or two, with arcs and lines between them.
// In: a pass, then what is to be seen. Out: an SVG drawing.
// A translator's source stands above what is written; any other model has a single row.

import { draw, fill } from "./dom.js";
import { pressable } from "./controls.js";
import { t } from "./words.js";
import { writtenTokens } from "./sides.js";

const HEIGHT = { source: 72, target: 158, end: 232 };  // the middle of each row, and the lower edge
const GAP = 8, HALF = 14;                              // between tokens; half a token's height
const LEAST = 0.05;                                    // a look of almost nothing is not drawn

// onword(at): a token was pressed, of the row in which words can be chosen
export class Stage {
  constructor(pass, onword) {
    this.both = pass.family === "translator";
    const [[side, { tokens }]] = Object.entries(pass.sides);
    this.rows = this.placed(this.both ? { source: tokens, target: writtenTokens(pass) } : { [side]: tokens });
    this.links = draw("g");
    this.chosen = Object.keys(this.rows).at(-1);  // the side of which a word can be chosen
    const press = (side, at) => onword && side === this.chosen ? pressable(() => onword(at)) : {};
    this.chips = Object.fromEntries(Object.entries(this.rows).map(([side, row]) =>
      [side, row.map((token, at) => this.chip(side, token, press(side, at)))]));
    this.svg = draw("svg", { class: "film-picture", role: "group", "aria-label": t("film") },
      this.links, ...Object.values(this.chips).flat());
    this.svg.style.width = `${this.width}px`;
    this.crop(false);
  }

  // Where each token stands: widths as measured, rows centred.
  placed(rows) {
    const pen = new OffscreenCanvas(1, 1).getContext("2d");
    pen.font = `14px ${getComputedStyle(document.body).fontFamily}`;
    const sized = Object.entries(rows).map(([side, tokens]) =>
      [side, tokens.map((token) => ({ token, width: pen.measureText(token).width + 16 }))]);
    const wide = (row) => row.reduce((sum, { width }) => sum + width + GAP, -GAP);
    this.width = Math.max(320, ...sized.map(([, row]) => wide(row))) + GAP;
    return Object.fromEntries(sized.map(([side, row]) => {
      let next = (this.width - wide(row)) / 2;
      const place = ({ token, width }) => {
        const x = next;
        next += width + GAP;
        return { token, width, x };
      };
      return [side, row.map(place)];
    }));
  }

  chip(side, { token, x, width }, having) {
    const place = `translate(${x} ${this.yOf(side) - HALF})`;
    return draw("g", { class: "film-token", transform: place, "data-token": token, ...having },
      having.role ? draw("title", {}, token) : null,
      draw("rect", { width, height: 2 * HALF, rx: 7 }),
      draw("text", { x: width / 2, y: 19, "text-anchor": "middle" }, token));
  }

  yOf(side) {
    return this.both ? HEIGHT[side] : HEIGHT.source;
  }

  middle(side, at) {
    const { x, width } = this.rows[side][at];
    return x + width / 2;
  }

  // A still picture of two rows has no arcs above and below, so it is lower than the film.
  crop(whole) {
    const top = whole || !this.both ? 0 : HEIGHT.source - 18;
    const bottom = !this.both ? HEIGHT.source + 18 : whole ? HEIGHT.end : HEIGHT.target + 18;
    this.svg.setAttribute("viewBox", `0 ${top} ${this.width} ${bottom - top}`);
  }

  // written: how many words of the target can be read already
  show({ arcs, lines, written }) {
    fill(this.links, ...(arcs?.mean ? this.arcs(arcs) : []), ...(lines ? this.lines(lines) : []));
    const row = lines?.row ?? arcs?.row;
    this.chips[this.chosen].forEach((chip, i) => {
      chip.classList.toggle("unwritten", this.both && i >= written);
      chip.classList.toggle("looks", i === row);
    });
    this.reveal(row ?? 0);
  }

  // On a narrow page the film is wider than its frame; the word that looks comes into sight.
  reveal(at) {
    const frame = this.svg.parentNode, wide = frame?.clientWidth ?? 0;
    if (wide && wide < this.width) frame.scrollLeft = this.middle(this.chosen, at) - wide / 2;
  }

  // All rows, or one. Row i of a translation has read word i - 1, so its first key, <bos>, is not drawn.
  arcs({ side, mean: { shape: [rows, columns], data }, row }) {
    const below = this.both && side === "target", shift = below ? 1 : 0;
    const found = [];
    for (let i = row ?? 0; i < (row === undefined ? rows : row + 1); i++) {
      for (let j = shift; j < columns; j++) {
        const path = arc(this.middle(side, i), this.middle(side, j - shift), this.yOf(side), below);
        if (i !== j - shift) found.push(link(path, data[i * columns + j]));
      }
    }
    return found;
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
  if (weight < LEAST) return null;
  return draw("path", { class: "link", d: path, "data-value": weight,
    "stroke-width": 0.6 + 4.5 * weight, "stroke-opacity": 0.15 + 0.85 * weight });
}
