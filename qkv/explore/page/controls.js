// What a person presses and pulls.
// In: labels, values, and what to do. Out: buttons, rows of choices, sliders; all of them work from the keyboard.
// Native elements wherever there is one, so that focus, roles and arrow keys come by themselves.

import { make } from "./dom.js";

export function button(label, onclick, having = {}) {
  return make("button", { type: "button", onclick, ...having }, label);
}

// A quiet sentence.
export function note(text, having = {}) {
  return make("p", { class: "soft small", ...having }, text);
}

// What makes a drawn thing a button: for SVG, which has none.
export function pressable(press) {
  const onkeydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    press();
  };
  return { role: "button", tabindex: 0, onclick: press, onkeydown };
}

// A slider with its name and its value; show(value) says how the value is read.
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

// A row of buttons of which one is pressed: [[value, label], ...]; arrow keys walk along it.
export function choices(options, chosen, name, onchoose) {
  const press = (value) => {
    mark(buttons, options, value);
    onchoose(value);
  };
  const buttons = options.map(([value, label]) =>
    button(label, () => press(value), { role: "radio", "data-choice": value }));
  mark(buttons, options, chosen);
  return make("div", { class: "choices", role: "radiogroup", "aria-label": name, onkeydown: alongButtons }, ...buttons);
}

function mark(buttons, options, chosen) {
  buttons.forEach((one, i) => {
    one.setAttribute("aria-checked", String(options[i][0] === chosen));
    one.tabIndex = options[i][0] === chosen ? 0 : -1;
  });
}

// Left and right move the focus to the neighbour and press it.
export function alongButtons(event) {
  const step = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
  if (!step) return;
  const buttons = [...event.currentTarget.querySelectorAll("button")];
  const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
  next.focus();
  next.click();
  event.preventDefault();
  event.stopPropagation();
}
