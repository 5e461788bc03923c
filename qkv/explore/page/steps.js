// The steps view: every step of the pass, one at a time.
// The list of steps, the selected one with its tensor values, and the textbook code beside it.
// Left and right arrow keys select the previous and next step.

import { make, fill, scrollWithin } from "./dom.js";
import { button, note } from "./controls.js";
import { t, localized } from "./words.js";
import { codeCard } from "./code.js";
import { animation } from "./animation.js";
import { StepValues } from "./step_values.js";
import { positionChips, revealPressed } from "./sides.js";

const HANDLES_ARROWS = "input, textarea, select, canvas, pre, [role=radiogroup], [role=tablist]";

export function showSteps(app) {
  const view = new StepsView(app);
  const keys = (event) => view.key(event);
  document.addEventListener("keydown", keys);
  app.cleanUp = () => {
    document.removeEventListener("keydown", keys);
    view.animation?.stop();
  };
  return view.element;
}

class StepsView {
  constructor(app) {
    this.app = app;
    this.pass = app.pass;
    this.values = new StepValues(app);
    this.animation = animation(app, (position) => this.chips.querySelectorAll("button")[position].click());
    this.list = make("nav", { class: "card step-list", "aria-label": t("stepList") }, ...this.groups());
    this.text = make("div", { class: "step-text" });
    this.beside = make("div", { class: "beside" });
    this.chips = this.pass.positions ? positionChips(app, (position) => this.selectPosition(position)) : null;
    const step = make("section", { class: "card step" }, this.bar(), this.text, this.chips, this.values.element);
    this.element = make("div", { class: "steps-view" },
      this.list, make("div", { class: "middle" }, this.animation?.element, step), this.beside);
    this.animation?.showPosition(app.position);
    this.go(Math.min(app.step, this.pass.steps.length - 1));
    requestAnimationFrame(() => this.reveal());
  }

  // Scroll to the selected step and position.
  reveal() {
    scrollWithin(this.list, this.list.querySelector("[aria-current]"));
    if (this.chips) revealPressed(this.chips);
  }

  selectPosition(position) {
    this.animation?.showPosition(position);
    this.app.guard(this.values.show(this.step()));
  }

  step() {
    return this.pass.steps[this.app.step];
  }

  // Steps are grouped by layer, and within a layer by sublayer.
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
    return groups.map(({ step, items }, index) => make("details", { name: "steps", open: index === 0 },
      make("summary", {}, this.heading(step)), make("ol", {}, ...items)));
  }

  heading({ stack, layer, part }) {
    const name = stack && this.app.model.family === "translator" ? `${t(stack)} · ` : "";
    if (layer !== null) return name + t(name ? "layer" : "layerAlone", layer);
    if (part === "embed") return name + localized(this.app.model.parts.embed.title);
    return name + t({ translator: stack === "encoder" ? "endMemory" : "endNext", generator: "endNext",
      embedder: "endVector" }[this.app.model.family]);
  }

  partName({ part }) {
    return make("li", { class: "part" }, localized(this.app.model.parts[part].title));
  }

  item({ kind, key }, index) {
    const { title } = this.app.model.kinds[kind];
    return make("li", {}, button(localized(title), () => this.go(index), { "data-step": key }));
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
    this.describe(this.step());
    if (this.chips) this.chips.hidden = !hasTargetRows(this.step());
    this.reveal();
    this.app.guard(this.values.show(this.step()));
  }

  mark(index) {
    const buttons = this.list.querySelectorAll("li button"), selected = buttons[index];
    this.list.querySelector("[aria-current]")?.removeAttribute("aria-current");
    this.list.querySelector(".current")?.classList.remove("current");
    selected.setAttribute("aria-current", "step");
    Object.assign(selected.closest("details"), { open: true, className: "current" });
    this.back.disabled = index === 0;
    this.next.disabled = index === buttons.length - 1;
    this.where.textContent = [t("stepOf", index + 1, buttons.length), ...this.locationOf(this.step())].join(" · ");
    this.progress.style.width = `${(100 * (index + 1)) / buttons.length}%`;
  }

  describe({ kind, stage, note: more }) {
    const { title, text, formula, code } = this.app.model.kinds[kind];
    const { number, title: name } = this.pass.stages.find(({ key }) => key === stage) ?? {};
    fill(this.text,
      number ? note(`${number} · ${localized(name)}`, { "data-stage": stage }) : null,
      make("h2", {}, localized(title)),
      make("p", { class: "about" }, localized(text)),
      more ? make("p", { class: "about soft" }, localized(more)) : null,
      formula ? make("p", { class: "formula" }, formula) : null);
    fill(this.beside, codeCard(this.app.model.code[code]));
  }

  locationOf({ stack, layer, part }) {
    const title = localized(this.app.model.parts[part]?.title);
    return [stack ? t(stack) : "", layer === null ? "" : t("layer", layer), title].filter(Boolean);
  }

  key(event) {
    if (event.target.closest(HANDLES_ARROWS) || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowRight") this.go(this.app.step + 1);
    if (event.key === "ArrowLeft") this.go(this.app.step - 1);
  }
}

// Whether a step has a row for each selectable position.
function hasTargetRows({ kind, tensors }) {
  return kind === "next" || tensors.some(({ labels }) => Object.values(labels).includes("target"));
}
