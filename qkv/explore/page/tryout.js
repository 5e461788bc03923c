// Try things: a page of small experiments with the open pass.
// In: what this model can do. Out: one card for each experiment, all about the same chosen position.
// A card fetches its numbers when it is made; choosing another position makes those that depend on it anew.

import { make, fill } from "./dom.js";
import { positionChips } from "./sides.js";
import { chancesCard } from "./chances.js";
import { switchesCard } from "./switches.js";
import { lensCard } from "./lens.js";
import { beamCard } from "./beam.js";
import { wavesCard } from "./waves.js";
import { mapCard } from "./map.js";
import { nearestCard } from "./nearest.js";

export function showTryout(app) {
  const { can } = app.model;
  const here = make("div", { class: "try" });
  const words = () => make("div", { class: "column" }, chancesCard(app), can.lens ? lensCard(app) : null);
  const renew = () => fill(here, can.logits ? words() : null, switchesCard(app));
  renew();
  const whole = make("div", { class: "try" }, can.sentences ? nearestCard(app) : null,
    can.beam ? beamCard(app) : null, mapCard(app), can.waves ? wavesCard(app) : null);
  return make("div", { class: "tryout" }, app.pass.positions ? positionChips(app, renew) : null, here, whole);
}
