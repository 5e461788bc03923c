// The experiments view: sampling, ablation, logit lens, beam search, embeddings, positions.
// One card per experiment that the model supports, the most useful ones first; the others are folded.
// Selecting another position draws the cards that depend on it again.

import { make } from "./dom.js";
import { positionChips } from "./sides.js";
import { probabilitiesCard } from "./probabilities.js";
import { ablationCard } from "./ablation.js";
import { logitLensCard } from "./logit_lens.js";
import { beamCard } from "./beam.js";
import { positionsCard } from "./positions.js";
import { projectionCard } from "./projection.js";
import { nearestCard } from "./nearest.js";

const OPEN_CARDS = 2;  // when the view is first shown

// In the order of the page; `needs` is a key of model.supports.
const RANKED = {
  nearest: { draw: nearestCard, needs: "sentences" },
  probabilities: { draw: probabilitiesCard, needs: "logits", atPosition: true },
  ablation: { draw: ablationCard, atPosition: true },
  beam: { draw: beamCard, needs: "beam" },
  "logit-lens": { draw: logitLensCard, needs: "logit_lens", atPosition: true },
  projection: { draw: projectionCard },
  positions: { draw: positionsCard, needs: "position_encodings" },
};

export function showExperiments(app) {
  const { supports } = app.model;
  const shown = Object.entries(RANKED).filter(([, { needs }]) => !needs || supports[needs]);
  app.openCards ??= new Set(shown.slice(0, OPEN_CARDS).map(([name]) => name));
  const cards = make("div", { class: "cards experiment-cards" }, ...shown.map(([, { draw }]) => draw(app)));
  const drawAtPosition = () => {
    for (const [name, { draw, atPosition }] of shown) {
      if (atPosition) cards.querySelector(`[data-card=${name}]`).replaceWith(draw(app));
    }
  };
  return make("div", { class: "experiments" }, app.pass.positions ? positionChips(app, drawAtPosition) : null, cards);
}
