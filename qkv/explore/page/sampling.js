// From logits to the chance of each token, as qkv/generate/sampling.py does it.
// In: raw logits, temperature, top-k, top-p. Out: probabilities that sum to one; a token that is cut has none.
// Computed in the page, so the picture follows the slider.

export function softmax(logits) {
  let highest = -Infinity, total = 0;
  for (const logit of logits) highest = Math.max(highest, logit);
  const chances = Float64Array.from(logits, (logit) => Math.exp(logit - highest));
  for (const chance of chances) total += chance;
  return chances.map((chance) => chance / total);
}

// temperature 0 takes the best token; topK 0 and topP 1 cut nothing.
export function distribution(logits, { temperature, topK, topP }) {
  if (temperature === 0) return onlyBest(logits);
  const chances = softmax(logits.map((logit) => logit / temperature));
  const order = ranked(chances);
  const kept = nucleus(chances, topK ? order.slice(0, topK) : order, topP);
  const total = kept.reduce((sum, id) => sum + chances[id], 0);
  const result = new Float64Array(chances.length);
  for (const id of kept) result[id] = chances[id] / total;
  return result;
}

function onlyBest(logits) {
  const result = new Float64Array(logits.length);
  const highest = logits.reduce((a, b) => Math.max(a, b));  // a whole vocabulary is too many arguments for one call
  result[logits.indexOf(highest)] = 1;
  return result;
}

// Token numbers, the most likely first.
export function ranked(chances) {
  return Array.from(chances.keys()).sort((a, b) => chances[b] - chances[a] || a - b);
}

// The shortest run of best tokens that holds topP of what is left; the best one always stays.
function nucleus(chances, order, topP) {
  if (topP >= 1) return order;
  const whole = order.reduce((sum, id) => sum + chances[id], 0);
  let held = 0, count = 0;
  while (count < order.length && (count === 0 || held < topP * whole)) held += chances[order[count++]];
  return order.slice(0, count);
}
