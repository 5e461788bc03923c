// Thumbnails of the attention weights of every layer and head.
// A grid of buttons; a layer is fetched when it becomes visible.
// The server sends at most 32 x 32 bytes per head, so 144 heads of a long text are cheap.

import { make } from "./dom.js";
import { button } from "./controls.js";
import { t } from "./words.js";
import { paint, rangeOf } from "./colors.js";

export function thumbnailGrid(app, { name, layers }, onselect) {
  const maxHeads = Math.max(...layers.map(({ heads }) => heads));
  const grid = make("div", { class: "thumbnails", role: "group", "aria-label": t("allHeads") });
  grid.style.gridTemplateColumns = `max-content repeat(${maxHeads}, minmax(0, 92px))`;
  const observer = whenVisible((label) => app.guard(drawLayer(app, name, label)));
  for (const { layer, heads } of layers) {
    const label = make("span", { class: "layer-name", "data-layer": layer }, t("layer", layer));
    const pictures = Array.from({ length: heads }, (_, head) => thumbnail(layer, head, onselect));
    const empty = Array.from({ length: maxHeads - heads }, () => make("span"));
    grid.append(label, ...pictures, ...empty);
    observer.observe(label);
  }
  return grid;
}

// Call once for each observed element, when it first becomes visible.
function whenVisible(callback) {
  const observer = new IntersectionObserver((entries) => entries.forEach(({ isIntersecting, target }) => {
    if (!isIntersecting) return;
    observer.unobserve(target);
    callback(target);
  }));
  return observer;
}

function thumbnail(layer, head, onselect) {
  const name = `${t("layer", layer)}, ${t("headNumber", head)}`;
  return button(make("canvas"), () => onselect(layer, head), {
    title: name, "aria-label": name, "data-layer": layer, "data-head": head });
}

// Mark the heads for which isSelected({ layer, head }) holds as pressed.
export function pressHeads(grid, isSelected) {
  for (const thumbnail of grid.querySelectorAll("button[data-head]")) {
    const { layer, head } = thumbnail.dataset;
    const pressed = isSelected({ layer: Number(layer), head: Number(head) });
    thumbnail.setAttribute("aria-pressed", String(pressed));
  }
}

async function drawLayer(app, kind, label) {
  const { layer } = label.dataset;
  const { shape: [, rows, columns], data } = await app.source.tensor(`pass/${app.pass.id}/thumbnails/${kind}/${layer}`);
  label.parentNode.querySelectorAll(`button[data-layer="${layer}"] canvas`).forEach((canvas, head) => {
    const values = data.subarray(head * rows * columns, (head + 1) * rows * columns);
    const picture = new ImageData(columns, rows);
    paint(values, new Uint32Array(picture.data.buffer), "probability", rangeOf(values, "probability", 255));
    Object.assign(canvas, { width: columns, height: rows });
    canvas.getContext("2d").putImageData(picture, 0, 0);
    canvas.dataset.drawn = "";
  });
}
