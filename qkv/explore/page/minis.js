// Every layer and head as a small picture.
// In: the layers and heads of one attention. Out: a grid of buttons; a layer's pictures are fetched when it comes into sight.
// The server sends each picture small (at most 32 x 32 bytes), so 144 heads of a long text cost little.

import { make } from "./dom.js";
import { t } from "./words.js";
import { paint, rangeOf } from "./colours.js";

export function miniatures(app, { name, layers }, chosen, onchoose) {
  const most = Math.max(...layers.map(({ heads }) => heads));
  const grid = make("div", { class: "minis", role: "group", "aria-label": t("allHeads") });
  grid.style.gridTemplateColumns = `auto repeat(${most}, minmax(0, 92px))`;
  const seen = new IntersectionObserver((entries) => entries.filter(({ isIntersecting }) => isIntersecting).forEach(({ target }) => {
    seen.unobserve(target);
    app.guard(drawLayer(app, name, target));
  }));
  for (const { layer, heads } of layers) {
    const label = make("span", { class: "layer-name", "data-layer": layer }, t("layer", layer + 1));
    grid.append(label, ...Array.from({ length: most }, (_, head) => head < heads ? mini(layer, head, chosen, onchoose, grid) : make("span")));
    seen.observe(label);
  }
  return grid;
}

function mini(layer, head, chosen, onchoose, grid) {
  const name = `${t("layer", layer + 1)}, ${t("headNumber", head)}`;
  return make("button", {
    type: "button", title: name, "aria-label": name, "data-layer": layer, "data-head": head, "aria-pressed": String(layer === chosen.layer && head === chosen.head),
    onclick: (event) => {
      grid.querySelector("[aria-pressed=true]")?.setAttribute("aria-pressed", "false");
      event.currentTarget.setAttribute("aria-pressed", "true");
      onchoose(layer, head);
    },
  }, make("canvas"));
}

async function drawLayer(app, which, label) {
  const { shape: [, rows, columns], data } = await app.source.tensor(`pass/${app.pass.id}/thumbs/${which}/${label.dataset.layer}`);
  const canvases = label.parentNode.querySelectorAll(`button[data-layer="${label.dataset.layer}"] canvas`);
  canvases.forEach((canvas, head) => {
    const values = data.subarray(head * rows * columns, (head + 1) * rows * columns);
    Object.assign(canvas, { width: columns, height: rows });
    const picture = new ImageData(columns, rows);
    paint(values, new Uint32Array(picture.data.buffer), "share", rangeOf(values, "share"));
    canvas.getContext("2d").putImageData(picture, 0, 0);
    canvas.dataset.drawn = "";
  });
}
