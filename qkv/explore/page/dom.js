// Creation of HTML and SVG elements.
// make(tag, attributes, ...children): a child that is not a node becomes a text node.
// So text of users and models is never parsed as HTML.

const SVG = "http://www.w3.org/2000/svg";

// make("button", { class: "quiet", onclick: run }, "Run")
export function make(tag, attributes = {}, ...children) {
  return applyAttributes(document.createElement(tag), attributes, children);
}

export function draw(tag, attributes = {}, ...children) {
  return applyAttributes(document.createElementNS(SVG, tag), attributes, children);
}

function applyAttributes(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

// Replace the children of the element.
export function fill(element, ...children) {
  element.replaceChildren(...children.filter((child) => child != null));
  return element;
}

// The width of a drawing in CSS pixels: the preferred one, or what fits into a card of this window.
export function availableWidth(preferred) {
  return Math.min(preferred, document.documentElement.clientWidth - 54);
}

export function byId(id) {
  return document.getElementById(id);
}

// 0.04213, 12.35, 1.2e-5: four significant digits.
export function formatNumber(value) {
  if (!Number.isFinite(value)) return value === -Infinity ? "−∞" : String(value);
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return text.replace("-", "−");
}

// Scroll the list, not the page, so that the item is visible.
export function scrollWithin(list, item) {
  const [outer, inner] = [list.getBoundingClientRect(), item.getBoundingClientRect()];
  if (inner.top < outer.top + 30) list.scrollTop += inner.top - outer.top - 60;
  if (inner.bottom > outer.bottom) list.scrollTop += inner.bottom - outer.bottom + 60;
}
