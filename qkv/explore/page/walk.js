// The walk: every step of the pass, one at a time.
// In: the steps of a pass. Out: their list, the chosen one with its numbers, and the textbook code beside it.
// Left and right arrows go from step to step.

import { make, fill, scrollWithin } from "./dom.js";
import { t, say } from "./words.js";
import { book } from "./code.js";
import { film } from "./film.js";
import { StepNumbers } from "./step.js";
import { positionChips, revealPressed } from "./sides.js";

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
    this.list = make("nav", { class: "card steps", "aria-label": t("steps") }, ...this.groups());
    this.told = make("div", { class: "told" });
    this.bar = this.stepBar();
    this.beside = make("div", { class: "beside" });
    this.film = film(app);
    this.chips = this.pass.positions ? positionChips(app, (position) => this.chooseWord(position)) : null;
    this.element = make("div", { class: "walk" }, this.list,
      make("div", { class: "middle" }, this.film?.element,
        make("section", { class: "card step" }, this.bar, this.told, this.chips, this.numbers.element)),
      this.beside);
    this.film?.showWord(app.position);
    this.go(Math.min(app.step, this.pass.steps.length - 1));
  }

  chooseWord(position) {
    this.film?.showWord(position);
    this.app.guard(this.numbers.show(this.step()));
  }

  step() {
    return this.pass.steps[this.app.step];
  }

  // Neighbouring steps of the same layer stand under one heading.
  groups() {
    const groups = [];
    this.pass.steps.forEach((step, index) => {
      const stack = step.stack ?? groups.at(-1)?.step.stack;
      const key = `${stack} ${step.layer} ${step.part === "embed"}`;
      if (groups.at(-1)?.key !== key) groups.push({ key, step, items: [] });
      const { items } = groups.at(-1);
      if (step.layer !== null && this.pass.steps[index - 1]?.part !== step.part) items.push(this.partName(step));
      items.push(this.item(step, index));
    });
    return groups.map(({ step, items }, at) => make("details", { name: "steps", open: at === 0 },
      make("summary", {}, this.heading(step, at)), make("ol", {}, ...items)));
  }

  heading({ stack, layer, part }, at) {
    const name = stack && this.app.model.family === "translator" ? `${t(stack)} · ` : "";
    if (layer !== null) return name + t(name ? "layer" : "layerAlone", layer + 1);
    return `${name}${t(at === 0 || part === "embed" ? "beginning" : "ending")}`;
  }

  partName({ part }) {
    return make("li", { class: "part" }, say(this.app.model.parts[part].title));
  }

  item(step, index) {
    const { title } = this.app.model.kinds[step.kind];
    return make("li", {}, make("button", { type: "button", "data-step": step.key, onclick: () => this.go(index) }, say(title)));
  }

  stepBar() {
    this.where = make("span", { class: "where" });
    this.back = make("button", { type: "button", class: "back", onclick: () => this.go(this.app.step - 1) }, `‹ ${t("before")}`);
    this.next = make("button", { type: "button", class: "next", onclick: () => this.go(this.app.step + 1) }, `${t("after")} ›`);
    this.progress = make("i");
    return make("div", {}, make("div", { class: "stepbar" }, this.back, this.where, this.next), make("div", { class: "progress" }, this.progress));
  }

  go(index) {
    if (index < 0 || index >= this.pass.steps.length) return;
    this.app.step = index;
    this.mark(index);
    if (this.chips) this.chips.hidden = !aboutTarget(this.step());
    if (this.chips?.isConnected) revealPressed(this.chips);
    this.tell(this.step());
    this.app.guard(this.numbers.show(this.step()));
  }

  mark(index) {
    const buttons = this.list.querySelectorAll("li button");
    this.list.querySelector("[aria-current]")?.removeAttribute("aria-current");
    this.list.querySelector(".here")?.classList.remove("here");
    buttons[index].setAttribute("aria-current", "step");
    const group = buttons[index].closest("details");
    group.open = true;
    group.classList.add("here");
    if (this.list.isConnected) scrollWithin(this.list, buttons[index]);
    this.back.disabled = index === 0;
    this.next.disabled = index === buttons.length - 1;
    fill(this.where, t("stepOf", index + 1, buttons.length), make("span", {}, this.placeOf(this.step())));
    this.progress.style.width = `${(100 * (index + 1)) / buttons.length}%`;
  }

  tell(step) {
    const { title, text, formula, code } = this.app.model.kinds[step.kind];
    const chapter = this.pass.chapters.find(({ key }) => key === step.chapter);
    fill(this.told,
      make("p", { class: "soft small", "data-chapter": step.chapter }, chapter ? `${chapter.number} · ${say(chapter.title)}` : ""),
      make("h2", {}, say(title)),
      make("p", { class: "about" }, say(text)),
      step.note ? make("p", { class: "about soft" }, say(step.note)) : null,
      formula ? make("p", { class: "formula" }, formula) : null);
    fill(this.beside, book(this.app.model.code[code]));
  }

  placeOf({ stack, layer, part }) {
    const parts = [stack ? t(stack) : null, layer === null ? null : t("layer", layer + 1), say(this.app.model.parts[part]?.title)];
    return ` · ${parts.filter(Boolean).join(" · ")}`;
  }

  key(event) {
    if (event.target.closest("input, textarea, select, canvas, [role=radiogroup], [role=tablist]") || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowRight") this.go(this.app.step + 1);
    if (event.key === "ArrowLeft") this.go(this.app.step - 1);
  }
}

// Steps with a row for each position that can be chosen.
function aboutTarget({ kind, tensors }) {
  return kind === "next" || tensors.some(({ labels }) => Object.values(labels).includes("target"));
}
