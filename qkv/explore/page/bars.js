// Bar charts: probabilities of next tokens, attention weights, cosine similarities.
// rows: [{ name, fraction, before }, ...]; the mark on a bar is the value before an edit.
// The exact value is in data-value, the rounded one beside the bar.

import { make } from "./dom.js";

export function percent(fraction) {
  if (fraction > 0 && fraction < 0.0005) return "<0.1%";
  return `${(100 * fraction).toFixed(1)}%`;
}

// A token outside the top k is at most as probable as the last of them.
export function atMost(fraction) {
  const text = percent(fraction);
  return text.startsWith("<") ? text : `≤ ${text}`;
}

export function bars(rows, longest = longestOf(rows), kind = "bars") {
  return make("div", { class: kind, role: "list" }, ...rows.map((row) => bar(row, longest || 1)));
}

function longestOf(rows) {
  return Math.max(...rows.map(({ fraction, before }) => Math.max(fraction, before ?? 0)));
}

export function cosineBar({ id, name, cosine }) {
  return { id, name, fraction: Math.max(0, cosine), value: cosine, label: cosine.toFixed(3).replace("-", "−") };
}

function bar({ name, fraction, before, id, value = fraction, label = percent(fraction) }, longest) {
  const track = make("span", { class: "track" }, make("i"));
  track.firstChild.style.width = `${(100 * fraction) / longest}%`;
  if (before !== undefined) track.append(mark(before, longest));
  const data = { "data-name": name, "data-id": id, "data-value": value };
  return make("div", { class: value ? "bar" : "bar zero", role: "listitem", ...data },
    make("span", { title: name }, name), track, make("span", {}, label));
}

function mark(before, longest) {
  const element = make("span", { class: "before", "data-before": before });
  element.style.left = `calc(${(100 * before) / longest}% - 1px)`;
  return element;
}

// The largest values of a row, with the names of its columns.
export function largest(values, names, limit = 8) {
  return Array.from(values, (fraction, column) => ({ name: names[column], fraction, column }))
    .sort((a, b) => b.fraction - a.fraction).slice(0, limit);
}
