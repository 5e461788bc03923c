// Every layer and head as a small picture.
// In: the layers and heads of one attention. Out: a grid of buttons; a layer is fetched when it comes into sight.
// The server sends each picture small (at most 32 x 32 bytes), so 144 heads of a long text cost little.

import { make } from "./dom.js";
import { button } from "./controls.js";
import { t } from "./words.js";
import { paint, rangeOf } from "./colours.js";

export function miniatures(app, { name, layers }, onchoose) {
  const most = Math.max(...layers.map(({ heads }) => heads));
  const grid = make("div", { class: "minis", role: "group", "aria-label": t("allHeads") });
  grid.style.gridTemplateColumns = `max-content repeat(${most}, minmax(0, 92px))`;
  const seen = whenSeen((label) => app.guard(drawLayer(app, name, label)));
  for (const { layer, heads } of layers) {
    const label = make("span", { class: "layer-name", "data-layer": layer }, t("layer", layer + 1));
    const pictures = Array.from({ length: heads }, (_, head) => mini(layer, head, onchoose));
    const empty = Array.from({ length: most - heads }, () => make("span"));
    grid.append(label, ...pictures, ...empty);
    seen.observe(label);
  }
  return grid;
}

// Calls once for each observed element, when it first comes into sight.
function whenSeen(call) {
  const watch = new IntersectionObserver((entries) => entries.forEach(({ isIntersecting, target }) => {
    if (!isIntersecting) return;
    watch.unobserve(target);
    call(target);
  }));
  return watch;
}

function mini(layer, head, onchoose) {
  const name = `${t("layer", layer + 1)}, ${t("headNumber", head + 1)}`;
  return button(make("canvas"), () => onchoose(layer, head), {
    title: name, "aria-label": name, "data-layer": layer, "data-head": head });
}

// The heads for which inside({ layer, head }) holds are pressed, all others are not.
export function pressHeads(place, inside) {
  for (const one of place.querySelectorAll("button[data-head]")) {
    const pressed = inside({ layer: Number(one.dataset.layer), head: Number(one.dataset.head) });
    one.setAttribute("aria-pressed", String(pressed));
  }
}

async function drawLayer(app, which, label) {
  const { layer } = label.dataset;
  const { shape: [, rows, columns], data } = await app.source.tensor(`pass/${app.pass.id}/thumbs/${which}/${layer}`);
  label.parentNode.querySelectorAll(`button[data-layer="${layer}"] canvas`).forEach((canvas, head) => {
    const values = data.subarray(head * rows * columns, (head + 1) * rows * columns);
    const picture = new ImageData(columns, rows);
    paint(values, new Uint32Array(picture.data.buffer), "share", rangeOf(values, "share", 255));
    Object.assign(canvas, { width: columns, height: rows });
    canvas.getContext("2d").putImageData(picture, 0, 0);
    canvas.dataset.drawn = "";
  });
}
