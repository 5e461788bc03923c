// The experiments view: sampling, ablation, logit lens, beam search, embeddings, positions.
// One card per experiment that the model supports.
// Selecting another position draws the cards that depend on it again.

import { make, fill } from "./dom.js";
import { positionChips } from "./sides.js";
import { probabilitiesCard } from "./probabilities.js";
import { ablationCard } from "./ablation.js";
import { logitLensCard } from "./logit_lens.js";
import { beamCard } from "./beam.js";
import { positionsCard } from "./positions.js";
import { projectionCard } from "./projection.js";
import { nearestCard } from "./nearest.js";

export function showExperiments(app) {
  const { supports } = app.model;
  const atPosition = make("div", { class: "cards" });
  const predictions = () => make("div", { class: "column" },
    probabilitiesCard(app), supports.logit_lens ? logitLensCard(app) : null);
  const drawAtPosition = () => fill(atPosition, supports.logits ? predictions() : null, ablationCard(app));
  drawAtPosition();
  const ofText = make("div", { class: "cards" }, supports.sentences ? nearestCard(app) : null,
    supports.beam ? beamCard(app) : null, projectionCard(app), supports.position_encodings ? positionsCard(app) : null);
  return make("div", { class: "experiments" },
    app.pass.positions ? positionChips(app, drawAtPosition) : null, atPosition, ofText);
}
