// The whole pass as a film: tokens, layers that mix them, and words that appear one after another.
// In: a pass and the mean attention of its layers, fetched when the film starts. Out: a drawing with a play button.
// A frame says what is seen: arcs among the tokens of one side, lines between the sides, and how many words are written.

import { make, draw, fill } from "./dom.js";
import { t } from "./words.js";
import { percent } from "./bars.js";
import { writtenTokens } from "./sides.js";

const LONGEST = 48;                                // tokens of a side; more do not fit a picture
const HEIGHT = { source: 72, target: 158, end: 232 };
const PACE = 850;                                  // milliseconds a frame

export function film(app) {
  const sides = Object.values(app.pass.sides);
  return sides.some((side) => side.tokens.length > LONGEST) ? null : new Film(app);
}

class Film {
  constructor(app) {
    this.app = app;
    this.pass = app.pass;
    this.both = this.pass.family === "translator";
    this.links = draw("g");
    this.rows = this.layout();
    this.caption = make("p", { class: "film-caption", "aria-live": "polite" }, " ");
    this.button = make("button", { type: "button", class: "main play", onclick: () => this.toggle() }, `▶ ${t("play")}`);
    this.slider = make("input", { type: "range", min: 0, max: this.frameCount() - 1, value: 0, "aria-label": t("frame"), oninput: () => this.seek() });
    this.element = make("section", { class: "card film" },
      make("div", { class: "film-bar" }, this.button, this.slider, this.caption),
      make("div", { class: "film-scroll" }, this.picture()));
  }

  // Where each token stands: widths as measured, both rows centred.
  layout() {
    const pen = new OffscreenCanvas(1, 1).getContext("2d");
    pen.font = `14px ${getComputedStyle(document.body).fontFamily}`;
    const rows = this.both ? { source: this.pass.sides.source.tokens, target: writtenTokens(this.pass) }
      : { [Object.keys(this.pass.sides)[0]]: Object.values(this.pass.sides)[0].tokens };
    const sized = Object.entries(rows).map(([side, tokens]) => [side, tokens.map((token) => ({ token, width: pen.measureText(token).width + 16 }))]);
    const widths = sized.map(([, chips]) => chips.reduce((sum, { width }) => sum + width + 8, -8));
    this.width = Math.max(320, ...widths) + 8;
    return Object.fromEntries(sized.map(([side, chips], i) => {
      let x = (this.width - widths[i]) / 2;
      return [side, chips.map((chip) => { const placed = { ...chip, x }; x += chip.width + 8; return placed; })];
    }));
  }

  picture() {
    this.chips = Object.fromEntries(Object.entries(this.rows).map(([side, chips]) => [side, chips.map((chip) => this.chip(side, chip))]));
    this.svg = draw("svg", { class: "film-picture", role: "img", "aria-label": t("film") }, this.links, ...Object.values(this.chips).flat());
    this.svg.style.width = `${this.width}px`;
    this.crop(false);
    return this.svg;
  }

  // A still picture has no arcs above and below, so it is lower than the film.
  crop(whole) {
    const top = whole || !this.both ? 0 : HEIGHT.source - 18;
    const bottom = !this.both ? HEIGHT.source + 18 : whole ? HEIGHT.end : HEIGHT.target + 18;
    this.svg.setAttribute("viewBox", `0 ${top} ${this.width} ${bottom - top}`);
  }

  yOf(side) {
    return this.both ? HEIGHT[side] : HEIGHT.source;
  }

  chip(side, { token, x, width }) {
    const hidden = this.both && side === "target";
    return draw("g", { class: hidden ? "film-token unwritten" : "film-token", "data-token": token, transform: `translate(${x} ${this.yOf(side) - 14})` },
      draw("rect", { width, height: 28, rx: 7 }), draw("text", { x: width / 2, y: 19, "text-anchor": "middle" }, token));
  }

  layersOf(which) {
    return this.pass.attention.find(({ name }) => name === which)?.layers ?? [];
  }

  frameCount() {
    const last = this.both ? 3 * this.pass.positions - 1 : 1;
    return 1 + this.layersOf(this.both ? "encoder" : this.which()).length + last;
  }

  which() {
    return this.pass.family === "embedder" ? "encoder" : "decoder";
  }

  async frames() {
    if (this.made) return this.made;
    const reading = [{ caption: t("filmRead"), written: 0 }];
    this.made = this.both ? [...reading, ...await this.encoding(), ...await this.writing()] : [...reading, ...await this.encoding(), this.ending()];
    return this.made;
  }

  mean(which, layer) {
    return this.app.source.tensor(`pass/${this.pass.id}/attention/${which}/${layer}/mean`);
  }

  async encoding() {
    const which = this.both ? "encoder" : this.which();
    const side = which === "encoder" ? "source" : "target";
    const weights = await Promise.all(this.layersOf(which).map(({ layer }) => this.mean(which, layer)));
    const words = which === "encoder" ? "filmEncode" : "filmThink";
    return weights.map((mean, layer) => ({ caption: t(words, layer + 1), arcs: { side, mean }, written: 0 }));
  }

  async writing() {
    const last = (which) => this.mean(which, this.layersOf(which).at(-1).layer);
    const [self, cross] = await Promise.all([last("decoder"), last("cross")]);
    const predicted = writtenTokens(this.pass), chance = this.pass.sides.target.predicted_p;
    return Array.from({ length: this.pass.positions }, (_, row) => [
      ...(row ? [{ caption: t("filmSelf", row + 1), arcs: { side: "target", mean: self, row }, written: row }] : []),
      { caption: t("filmCross", row + 1), lines: { mean: cross, row }, written: row },
      { caption: t("filmWrite", row + 1, predicted[row], chance ? percent(chance[row]) : ""), lines: { mean: cross, row }, written: row + 1 },
    ]).flat();
  }

  ending() {
    const { predicted, predicted_p: chance } = this.pass.sides.target ?? {};
    if (!predicted) return { caption: t("filmPool") };
    return { caption: t("filmNext", predicted.at(-1), percent(chance.at(-1))) };
  }

  // Everything is written; the lines are those of one word.
  async showWord(position) {
    this.stop();
    const frames = await this.app.guard(this.frames());
    this.slider.value = this.both ? this.frameCount() - 3 * (this.pass.positions - position) + 2 : this.frameCount() - 1;
    if (!frames) return;
    this.crop(false);
    this.still = true;
    const look = this.both ? {} : { arcs: { ...frames.at(-2).arcs, row: position } };  // the last layer's look
    this.showFrame({ ...frames[this.slider.value], ...look, written: Infinity });
  }

  async seek() {
    const frames = await this.app.guard(this.frames());
    if (!frames) return;
    this.crop(true);
    this.still = false;
    this.showFrame(frames[this.slider.value]);
  }

  showFrame({ caption, arcs, lines, written }) {
    this.caption.textContent = caption;
    fill(this.links, ...(arcs ? this.arcs(arcs) : []), ...(lines ? this.lines(lines) : []));
    if (this.both) this.chips.target.forEach((chip, i) => chip.classList.toggle("unwritten", i >= written));
  }

  // Row i of the target has read word i - 1, so its look back starts there; the first token, <bos>, is not drawn.
  arcs({ side, mean, row }) {
    if (!mean) return [];  // a model without attention
    const { shape: [rows, columns], data } = mean;
    const y = this.yOf(side), below = this.both && side === "target", shift = below ? 1 : 0;
    const paths = [];
    for (let i = row ?? 0; i < (row === undefined ? rows : row + 1); i++) {
      for (let j = shift; j < columns; j++) {
        const [from, to] = [this.middle(side, i), this.middle(side, j - shift)];
        if (i !== j - shift) paths.push(link(arc(from, to, y, below), data[i * columns + j]));
      }
    }
    return paths;
  }

  lines({ mean: { shape: [, columns], data }, row }) {
    const from = this.middle("target", row);
    return Array.from({ length: columns }, (_, j) =>
      link(`M${from} ${HEIGHT.target - 14} C${from} ${HEIGHT.target - 48}, ${this.middle("source", j)} ${HEIGHT.source + 48}, ${this.middle("source", j)} ${HEIGHT.source + 14}`, data[row * columns + j]));
  }

  middle(side, at) {
    const { x, width } = this.rows[side][at];
    return x + width / 2;
  }

  async toggle() {
    if (this.timer) return this.stop();
    if (this.still || Number(this.slider.value) >= this.frameCount() - 1) this.slider.value = 0;
    this.button.textContent = `❚❚ ${t("pause")}`;
    this.timer = setInterval(() => this.advance(), PACE);
    return this.seek();
  }

  advance() {
    if (Number(this.slider.value) >= this.frameCount() - 1) return this.stop();
    this.slider.value = Number(this.slider.value) + 1;
    return this.seek();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = `▶ ${t("play")}`;
  }
}

function arc(from, to, y, below) {
  const bend = Math.min(52, 14 + Math.abs(from - to) * 0.3) * (below ? 1 : -1);
  const edge = y + (below ? 14 : -14);
  return `M${from} ${edge} C${from} ${edge + bend}, ${to} ${edge + bend}, ${to} ${edge}`;
}

// A look of almost nothing is not drawn.
function link(path, weight) {
  if (weight < 0.05) return null;
  return draw("path", { class: "link", d: path, "stroke-width": (0.6 + 4.5 * weight).toFixed(2), "stroke-opacity": Math.min(1, 0.15 + weight).toFixed(2), "data-value": weight });
}
