// Animation of the whole pass: tokens, layer by layer attention, then generated tokens one by one.
// The mean attention weights of the layers are fetched when the animation starts.
// A frame: a caption, arcs within a side, lines between the sides, and the number of visible target tokens.

import { make } from "./dom.js";
import { button } from "./controls.js";
import { t } from "./words.js";
import { percent, largest } from "./bars.js";
import { Diagram } from "./diagram.js";
import { predictedTokens } from "./sides.js";

const MAX_TOKENS = 48;       // of a side; more do not fit into the diagram
const FRAME_DURATION = 850;  // milliseconds

// onselect(position): a token of the diagram was pressed; null if the text is too long
export function animation(app, onselect) {
  return Object.values(app.pass.sides).some(({ tokens }) => tokens.length > MAX_TOKENS) ? null
    : new Animation(app, onselect);
}

class Animation {
  constructor(app, onselect) {
    this.app = app;
    this.pass = app.pass;
    this.diagram = new Diagram(app.pass, app.pass.positions ? onselect : null);
    this.caption = make("p", { class: "animation-caption", "aria-live": "polite" });
    this.button = button(`▶ ${t("play")}`, () => this.toggle(), { class: "main play" });
    this.slider = make("input", { type: "range", min: 0, max: this.last(), value: 0, "aria-label": t("frame") });
    this.slider.addEventListener("input", () => this.seek());
    this.element = make("section", { class: "card animation" },
      make("div", { class: "animation-bar" }, this.button, this.slider, this.caption),
      make("div", { class: "animation-scroll" }, this.diagram.svg));
  }

  // The kind and the side of the self-attention over the input.
  inputAttention() {
    return this.pass.family === "generator" ? ["decoder", "target"] : ["encoder", "source"];
  }

  layersOf(kind) {
    return this.pass.attention.find(({ name }) => name === kind)?.layers ?? [];
  }

  // The index of the last frame: tokens, layers, then three frames per target token (two for the first), or one.
  last() {
    const layers = this.layersOf(this.inputAttention()[0]).length;
    return layers + (this.diagram.both ? 3 * this.pass.positions - 1 : 1);
  }

  // The frame in which a target token first appears.
  frameOf(position) {
    return this.diagram.both ? this.last() - 3 * (this.pass.positions - 1 - position) : this.last();
  }

  frames() {
    this.made ??= this.makeFrames();
    return this.made;
  }

  async makeFrames() {
    const tokens = { caption: t("animationTokens"), visible: 0 };
    const output = this.diagram.both ? await this.targetFrames() : [this.lastFrame()];
    return [tokens, ...await this.layerFrames(), ...output];
  }

  mean(kind, layer) {
    return this.app.source.tensor(`pass/${this.pass.id}/attention/${kind}/${layer}/mean`);
  }

  async layerFrames() {
    const [kind, side] = this.inputAttention(), key = kind === "encoder" ? "animationEncoder" : "animationDecoder";
    return Promise.all(this.layersOf(kind).map(async ({ layer }) =>
      ({ caption: t(key, layer), arcs: { side, mean: await this.mean(kind, layer) }, visible: 0 })));
  }

  async targetFrames() {
    const self = await this.mean("decoder", this.layersOf("decoder").at(-1).layer);
    const { guided } = this.pass.attention.find(({ name }) => name === "cross");
    const head = guided ? `${guided.layer}/${guided.head}` : "mean";  // mean: of all layers and heads
    const cross = await this.app.source.tensor(`pass/${this.pass.id}/attention/cross/${head}`);
    return predictedTokens(this.pass).flatMap((token, row) =>
      this.tokenFrames(token, row, self, { ...cross, about: t(guided ? "guidedHead" : "meanOfAll") }));
  }

  tokenFrames(token, row, self, cross) {
    const prob = this.pass.sides.target.predicted_p?.[row];
    const lines = { mean: cross, row }, [{ name, fraction }] = this.largestWeights(cross, row);
    const attended = [name, percent(fraction), cross.about];
    const back = { caption: t("animationSelf", row + 1), arcs: { side: "target", mean: self, row }, visible: row };
    return [...(row ? [back] : []),
      { caption: t("animationCross", row + 1, ...attended), lines, visible: row },
      { caption: t("animationPrediction", row + 1, token, prob ? percent(prob) : "…", ...attended),
        lines, visible: row + 1 }];
  }

  // The largest attention weights of a row, with source tokens.
  largestWeights({ shape: [, columns], data }, row) {
    return largest(data.subarray(row * columns, (row + 1) * columns), this.pass.sides.source.tokens);
  }

  // Without a source side the last frame is the prediction at a position, the last by default; or pooling.
  lastFrame(position = -1) {
    const { tokens, predicted, predicted_p: probs } = this.pass.sides.target ?? {};
    if (!tokens || !this.app.model.supports.logits) return { caption: t("animationPool") };
    if (!predicted) return { caption: t("animationLogits", tokens.at(position)) };  // predictions are too costly
    return { caption: t("animationNext", tokens.at(position), predicted.at(position), percent(probs.at(position))) };
  }

  // Show the final state with the lines of one token, or the arcs of the last layer.
  showPosition(position) {
    this.stop();
    const row = this.pass.positions ? position : undefined;  // without logits: every row
    const last = (before) => this.diagram.both ? {} : { ...this.lastFrame(position), arcs: { ...before?.arcs, row } };
    const transform = (frame, before) => ({ ...frame, ...last(before), visible: Infinity });
    return this.show(this.frameOf(position), transform, true);
  }

  seek() {
    return this.show(Number(this.slider.value), (frame) => frame, false);
  }

  // Show a frame once its data has arrived, unless another was requested meanwhile.
  async show(index, transform, still) {
    const request = this.request = {};
    const frames = await this.app.guard(this.frames());
    if (!frames || request !== this.request) return;
    Object.assign(this, { still });
    this.slider.value = index;
    const frame = transform(frames[index], frames[index - 1]);
    this.caption.textContent = frame.caption;
    this.diagram.crop(!still);
    this.diagram.show(frame);
    this.element.dataset.frame = index;
  }

  async toggle() {
    if (this.timer) return this.stop();
    if (this.still || Number(this.slider.value) === this.last()) this.slider.value = 0;
    this.button.textContent = `❚❚ ${t("pause")}`;
    this.timer = setInterval(() => this.advance(), FRAME_DURATION);
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
