// The whole pass as a film: tokens, layers that mix them, and words that appear one after another.
// In: a pass and the mean attention of its layers, fetched when the film starts. Out: a stage with a play button.
// A frame says what is seen: arcs on one side, lines between the sides, and how many words are written.

import { make } from "./dom.js";
import { button } from "./controls.js";
import { t } from "./words.js";
import { percent, largest } from "./bars.js";
import { Stage } from "./stage.js";
import { writtenTokens } from "./sides.js";

const LONGEST = 48;  // tokens of a side; more do not fit a picture
const PACE = 850;    // milliseconds a frame

// onword(position): a word of the film was pressed
export function film(app, onword) {
  return Object.values(app.pass.sides).some(({ tokens }) => tokens.length > LONGEST) ? null : new Film(app, onword);
}

class Film {
  constructor(app, onword) {
    this.app = app;
    this.pass = app.pass;
    this.stage = new Stage(app.pass, app.pass.positions ? onword : null);
    this.caption = make("p", { class: "film-caption", "aria-live": "polite" });
    this.button = button(`▶ ${t("play")}`, () => this.toggle(), { class: "main play" });
    this.slider = make("input", { type: "range", min: 0, max: this.last(), value: 0, "aria-label": t("frame") });
    this.slider.addEventListener("input", () => this.seek());
    this.element = make("section", { class: "card film" },
      make("div", { class: "film-bar" }, this.button, this.slider, this.caption),
      make("div", { class: "film-scroll" }, this.stage.svg));
  }

  // The attention that reads the text, and the side it reads.
  reading() {
    return this.pass.family === "generator" ? ["decoder", "target"] : ["encoder", "source"];
  }

  layersOf(which) {
    return this.pass.attention.find(({ name }) => name === which)?.layers ?? [];
  }

  // The number of the last frame: tokens, then layers, then each word in three moments (the first in two), or an end.
  last() {
    const layers = this.layersOf(this.reading()[0]).length;
    return layers + (this.stage.both ? 3 * this.pass.positions - 1 : 1);
  }

  // The frame in which a word stands for the first time.
  frameOf(position) {
    return this.stage.both ? this.last() - 3 * (this.pass.positions - 1 - position) : this.last();
  }

  frames() {
    this.made ??= this.make();
    return this.made;
  }

  async make() {
    const tokens = { caption: t("filmRead"), written: 0 };
    return [tokens, ...await this.layers(), ...(this.stage.both ? await this.words() : [this.ending()])];
  }

  mean(which, layer) {
    return this.app.source.tensor(`pass/${this.pass.id}/attention/${which}/${layer}/mean`);
  }

  async layers() {
    const [which, side] = this.reading(), told = which === "encoder" ? "filmEncode" : "filmThink";
    const means = await Promise.all(this.layersOf(which).map(({ layer }) => this.mean(which, layer)));
    return means.map((mean, i) => ({ caption: t(told, i + 1), arcs: { side, mean }, written: 0 }));
  }

  async words() {
    const self = await this.mean("decoder", this.layersOf("decoder").at(-1).layer);
    const { guided } = this.pass.attention.find(({ name }) => name === "cross");
    const head = guided ? `${guided.layer}/${guided.head}` : "mean";  // mean: of all layers and heads
    const cross = await this.app.source.tensor(`pass/${this.pass.id}/attention/cross/${head}`);
    return writtenTokens(this.pass).flatMap((word, row) => this.word(word, row, self, cross));
  }

  word(word, row, self, cross) {
    const chance = this.pass.sides.target.predicted_p?.[row];
    const lines = { mean: cross, row }, [{ name, share }] = this.looks(cross, row);
    const back = { caption: t("filmSelf", row + 1), arcs: { side: "target", mean: self, row }, written: row };
    return [...(row ? [back] : []),
      { caption: t("filmCross", row + 1, name, percent(share)), lines, written: row },
      { caption: t("filmWrite", row + 1, word, chance ? percent(chance) : "…", name, percent(share)),
        lines, written: row + 1 }];
  }

  // Where a word looks in the sentence, the most first.
  looks({ shape: [, columns], data }, row) {
    return largest(data.subarray(row * columns, (row + 1) * columns), this.pass.sides.source.tokens);
  }

  // A single row of tokens ends in what comes after one of them, the last unless another is chosen; or in a pool.
  ending(position = -1) {
    const { tokens, predicted, predicted_p: chances } = this.pass.sides.target ?? {};
    if (!tokens || !this.app.model.can.logits) return { caption: t("filmPool") };
    if (!predicted) return { caption: t("filmChances", tokens.at(position)) };  // a very large model tells when asked
    return { caption: t("filmNext", tokens.at(position), predicted.at(position), percent(chances.at(position))) };
  }

  // Everything is written; the lines are those of one word, the arcs those of the last layer.
  showWord(position) {
    this.stop();
    const row = this.pass.positions ? position : undefined;  // an encoder without logits: every row
    const look = (before) => this.stage.both ? {} : { ...this.ending(position), arcs: { ...before?.arcs, row } };
    const dress = (frame, before) => ({ ...frame, ...look(before), written: Infinity });
    return this.show(this.frameOf(position), dress, true);
  }

  seek() {
    return this.show(Number(this.slider.value), (frame) => frame, false);
  }

  // Whoever asked last is shown, whenever the numbers arrive.
  async show(at, dress, still) {
    const asked = this.asked = {};
    const frames = await this.app.guard(this.frames());
    if (!frames || asked !== this.asked) return;
    Object.assign(this, { still });
    this.slider.value = at;
    const frame = dress(frames[at], frames[at - 1]);
    this.caption.textContent = frame.caption;
    this.stage.crop(!still);
    this.stage.show(frame);
    this.element.dataset.frame = at;
  }

  async toggle() {
    if (this.timer) return this.stop();
    if (this.still || Number(this.slider.value) === this.last()) this.slider.value = 0;
    this.button.textContent = `❚❚ ${t("pause")}`;
    this.timer = setInterval(() => this.advance(), PACE);
    return this.seek();
  }

  advance() {
    if (Number(this.slider.value) === this.last()) return this.stop();
    this.slider.value = Number(this.slider.value) + 1;
    return this.seek();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.button.textContent = `▶ ${t("play")}`;
  }
}
