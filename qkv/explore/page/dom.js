// Elements of the page, made in one line each.
// In: a tag, what it should have, its children. Out: an element; text enters as text only, never as HTML.
// A child that is not a node becomes a text node, so what a person or a model writes cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

// make("button", { class: "quiet", onclick: run }, "Run")
export function make(tag, having = {}, ...children) {
  return furnish(document.createElement(tag), having, children);
}

export function draw(tag, having = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), having, children);
}

function furnish(element, having, children) {
  for (const [name, value] of Object.entries(having)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

// The element holds exactly these children from now on.
export function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child != null));
  return element;
}

// The width of a drawing, in CSS pixels: as wide as it likes to be, or as this window has room for within a card.
export function roomFor(wide) {
  return Math.min(wide, document.documentElement.clientWidth - 54);
}

export function byId(id) {
  return document.getElementById(id);
}

// 0.04213, 12.35, 1.2e-5: four digits that matter.
export function digits(value) {
  if (!Number.isFinite(value)) return value === -Infinity ? "−∞" : String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  const shown = size >= 1e5 || size < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return shown.replace("-", "−");
}

// The list scrolls so that the item is in sight; the page does not.
export function scrollWithin(list, item) {
  const [outer, inner] = [list.getBoundingClientRect(), item.getBoundingClientRect()];
  if (inner.top < outer.top + 30) list.scrollTop += inner.top - outer.top - 60;
  if (inner.bottom > outer.bottom) list.scrollTop += inner.bottom - outer.bottom + 60;
}
