// Buttons, notes, sliders and radio groups.
// Native elements where they exist, so that focus, roles and keys work.
// All controls can be used from the keyboard.

import { make } from "./dom.js";

export function button(label, onclick, attributes = {}) {
  return make("button", { type: "button", onclick, ...attributes }, label);
}

// A short explanatory text.
export function note(text, attributes = {}) {
  return make("p", { class: "soft small", ...attributes }, text);
}

// Attributes that make an SVG element a button.
export function pressable(press) {
  const onkeydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    press();
  };
  return { role: "button", tabindex: 0, onclick: press, onkeydown };
}

// A slider with its label and value; show(value) formats the value.
export function slider(label, { name, min, max, step, value }, oninput, { show = String, onchange } = {}) {
  const output = make("output", {}, show(value));
  const input = make("input", { type: "range", name, min, max, step, value, "aria-label": label });
  input.addEventListener("input", () => {
    output.textContent = show(Number(input.value));
    oninput(Number(input.value));
  });
  if (onchange) input.addEventListener("change", onchange);
  return make("label", { class: "slider" }, make("span", {}, label), input, output);
}

// A radio group: [[value, label], ...]; arrow keys move the selection.
export function choices(options, selected, name, onselect) {
  const press = (value) => {
    mark(buttons, options, value);
    onselect(value);
  };
  const buttons = options.map(([value, label]) =>
    button(label, () => press(value), { role: "radio", "data-choice": value }));
  mark(buttons, options, selected);
  return make("div", { class: "choices", role: "radiogroup", "aria-label": name, onkeydown: moveFocus }, ...buttons);
}

function mark(buttons, options, selected) {
  buttons.forEach((element, i) => {
    element.setAttribute("aria-checked", String(options[i][0] === selected));
    element.tabIndex = options[i][0] === selected ? 0 : -1;
  });
}

// Arrow keys move the focus to the adjacent button and press it.
export function moveFocus(event) {
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (!step) return;
  const buttons = [...event.currentTarget.querySelectorAll("button")];
  const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
  next.focus();
  next.click();
  event.preventDefault();
  event.stopPropagation();
}
