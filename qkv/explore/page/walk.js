// The walk: every step of the pass, one at a time.
// In: the steps of a pass. Out: their list, the chosen one with its numbers, and the textbook code beside it.
// Left and right arrows go from step to step.

import { make, fill, scrollWithin } from "./dom.js";
import { button, note } from "./controls.js";
import { t, say } from "./words.js";
import { book } from "./code.js";
import { film } from "./film.js";
import { StepNumbers } from "./step.js";
import { positionChips, revealPressed } from "./sides.js";

const OWN_ARROWS = "input, textarea, select, canvas, pre, [role=radiogroup], [role=tablist]";

export function showWalk(app) {
  const walk = new Walk(app);
  const keys = (event) => walk.key(event);
  document.addEventListener("keydown", keys);
  app.leave = () => {
    document.removeEventListener("keydown", keys);
    walk.film?.stop();
  };
  return walk.element;
}

class Walk {
  constructor(app) {
    this.app = app;
    this.pass = app.pass;
    this.numbers = new StepNumbers(app);
    this.film = film(app, (position) => this.chips.querySelectorAll("button")[position].click());
    this.list = make("nav", { class: "card steps", "aria-label": t("steps") }, ...this.groups());
    this.told = make("div", { class: "told" });
    this.beside = make("div", { class: "beside" });
    this.chips = this.pass.positions ? positionChips(app, (position) => this.chooseWord(position)) : null;
    const step = make("section", { class: "card step" }, this.bar(), this.told, this.chips, this.numbers.element);
    this.element = make("div", { class: "walk" },
      this.list, make("div", { class: "middle" }, this.film?.element, step), this.beside);
    this.film?.showWord(app.position);
    this.go(Math.min(app.step, this.pass.steps.length - 1));
    requestAnimationFrame(() => this.reveal());
  }

  // What is chosen comes into sight in the list and among the tokens.
  reveal() {
    scrollWithin(this.list, this.list.querySelector("[aria-current]"));
    if (this.chips) revealPressed(this.chips);
  }

  chooseWord(position) {
    this.film?.showWord(position);
    this.app.guard(this.numbers.show(this.step()));
  }

  step() {
    return this.pass.steps[this.app.step];
  }

  // Neighbouring steps of the same layer stand under one heading, those of a sublayer under a smaller one.
  groups() {
    const groups = [];
    this.pass.steps.forEach((step, index) => {
      const stack = step.stack ?? groups.at(-1)?.step.stack;
      const key = `${stack} ${step.layer} ${step.part === "embed"}`;
      if (groups.at(-1)?.key !== key) groups.push({ key, step: { ...step, stack }, items: [] });
      const { items } = groups.at(-1);
      if (step.layer !== null && this.pass.steps[index - 1]?.part !== step.part) items.push(this.partName(step));
      items.push(this.item(step, index));
    });
    return groups.map(({ step, items }, at) => make("details", { name: "steps", open: at === 0 },
      make("summary", {}, this.heading(step)), make("ol", {}, ...items)));
  }

  heading({ stack, layer, part }) {
    const name = stack && this.app.model.family === "translator" ? `${t(stack)} · ` : "";
    if (layer !== null) return name + t(name ? "layer" : "layerAlone", layer + 1);
    if (part === "embed") return name + say(this.app.model.parts.embed.title);
    return name + t({ translator: stack === "encoder" ? "endMemory" : "endNext", generator: "endNext",
      embedder: "endVector" }[this.app.model.family]);
  }

  partName({ part }) {
    return make("li", { class: "part" }, say(this.app.model.parts[part].title));
  }

  item({ kind, key }, index) {
    const { title } = this.app.model.kinds[kind];
    return make("li", {}, button(say(title), () => this.go(index), { "data-step": key }));
  }

  bar() {
    const move = (by) => () => this.go(this.app.step + by);
    this.back = button(`‹ ${t("before")}`, move(-1), { class: "back" });
    this.next = button(`${t("after")} ›`, move(1), { class: "next" });
    this.where = make("span", { class: "where" });
    this.progress = make("i");
    return make("div", {}, make("div", { class: "stepbar" }, this.back, this.where, this.next),
      make("div", { class: "progress" }, this.progress));
  }

  go(index) {
    if (index < 0 || index >= this.pass.steps.length) return;
    this.app.step = index;
    this.mark(index);
    this.tell(this.step());
    if (this.chips) this.chips.hidden = !aboutTarget(this.step());
    this.reveal();
    this.app.guard(this.numbers.show(this.step()));
  }

  mark(index) {
    const buttons = this.list.querySelectorAll("li button"), chosen = buttons[index];
    this.list.querySelector("[aria-current]")?.removeAttribute("aria-current");
    this.list.querySelector(".here")?.classList.remove("here");
    chosen.setAttribute("aria-current", "step");
    Object.assign(chosen.closest("details"), { open: true, className: "here" });
    this.back.disabled = index === 0;
    this.next.disabled = index === buttons.length - 1;
    this.where.textContent = [t("stepOf", index + 1, buttons.length), ...this.placeOf(this.step())].join(" · ");
    this.progress.style.width = `${(100 * (index + 1)) / buttons.length}%`;
  }

  tell({ kind, chapter, note: more }) {
    const { title, text, formula, code } = this.app.model.kinds[kind];
    const { number, title: name } = this.pass.chapters.find(({ key }) => key === chapter) ?? {};
    fill(this.told,
      number ? note(`${number} · ${say(name)}`, { "data-chapter": chapter }) : null,
      make("h2", {}, say(title)),
      make("p", { class: "about" }, say(text)),
      more ? make("p", { class: "about soft" }, say(more)) : null,
      formula ? make("p", { class: "formula" }, formula) : null);
    fill(this.beside, book(this.app.model.code[code]));
  }

  placeOf({ stack, layer, part }) {
    return [stack ? t(stack) : "", layer === null ? "" : t("layer", layer + 1), say(this.app.model.parts[part]?.title)]
      .filter(Boolean);
  }

  key(event) {
    if (event.target.closest(OWN_ARROWS) || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowRight") this.go(this.app.step + 1);
    if (event.key === "ArrowLeft") this.go(this.app.step - 1);
  }
}

// Steps with a row for each position that can be chosen.
function aboutTarget({ kind, tensors }) {
  return kind === "next" || tensors.some(({ labels }) => Object.values(labels).includes("target"));
}
