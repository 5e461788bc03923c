// Probabilities from logits with temperature, top-k and top-p, as in qkv/generate/sampling.py.
// The result sums to one; a truncated token has probability 0.
// Computed in the page, so that the bars follow the sliders.

export function softmax(logits) {
  let highest = -Infinity, total = 0;
  for (const logit of logits) highest = Math.max(highest, logit);
  const probs = Float64Array.from(logits, (logit) => Math.exp(logit - highest));
  for (const prob of probs) total += prob;
  return probs.map((prob) => prob / total);
}

// Temperature 0 is greedy; topK 0 and topP 1 truncate nothing.
export function distribution(logits, { temperature, topK, topP }) {
  if (temperature === 0) return greedy(logits);
  const probs = softmax(logits.map((logit) => logit / temperature));
  const order = ranked(probs);
  const kept = nucleus(probs, topK ? order.slice(0, topK) : order, topP);
  const total = kept.reduce((sum, id) => sum + probs[id], 0);
  const result = new Float64Array(probs.length);
  for (const id of kept) result[id] = probs[id] / total;
  return result;
}

function greedy(logits) {
  const result = new Float64Array(logits.length);
  const highest = logits.reduce((a, b) => Math.max(a, b));  // a vocabulary is too many arguments for one Math.max
  result[logits.indexOf(highest)] = 1;
  return result;
}

// Token ids, the most probable first.
export function ranked(probs) {
  return Array.from(probs.keys()).sort((a, b) => probs[b] - probs[a] || a - b);
}

// The fewest most probable tokens whose probabilities sum to topP; at least one.
function nucleus(probs, order, topP) {
  if (topP >= 1) return order;
  const total = order.reduce((partial, id) => partial + probs[id], 0);
  let sum = 0, count = 0;
  while (count < order.length && (count === 0 || sum < topP * total)) sum += probs[order[count++]];
  return order.slice(0, count);
}
