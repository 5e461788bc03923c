// Shares as bars: the chance of each next token, or how much of a look goes where.
// In: rows of { name, share, before }. Out: a list of bars; the mark on a bar is the share before a change.
// The exact number stands in data-value, the rounded one beside the bar. A cosine is a bar too: { name, cosine }.

import { make } from "./dom.js";

export function percent(share) {
  if (share > 0 && share < 0.0005) return "<0.1%";
  return `${(100 * share).toFixed(1)}%`;
}

// Of what is not among the likeliest, only this is known: it is no likelier than the last of them.
export function atMost(share) {
  const told = percent(share);
  return told.startsWith("<") ? told : `≤ ${told}`;
}

export function bars(rows, longest = longestOf(rows), kind = "bars") {
  return make("div", { class: kind, role: "list" }, ...rows.map((row) => bar(row, longest || 1)));
}

function longestOf(rows) {
  return Math.max(...rows.map(({ share, before }) => Math.max(share, before ?? 0)));
}

export function cosineBar({ id, name, cosine }) {
  return { id, name, share: Math.max(0, cosine), value: cosine, label: cosine.toFixed(3).replace("-", "−") };
}

function bar({ name, share, before, id, value = share, label = percent(share) }, longest) {
  const track = make("span", { class: "track" }, make("i"));
  track.firstChild.style.width = `${(100 * share) / longest}%`;
  if (before !== undefined) track.append(mark(before, longest));
  const told = { "data-name": name, "data-id": id, "data-value": value };
  return make("div", { class: value ? "bar" : "bar out", role: "listitem", ...told },
    make("span", { title: name }, name), track, make("span", {}, label));
}

function mark(before, longest) {
  const element = make("span", { class: "before", "data-before": before });
  element.style.left = `calc(${(100 * before) / longest}% - 1px)`;
  return element;
}

// The largest shares of a row, with the names of its columns.
export function largest(values, names, most = 8) {
  return Array.from(values, (share, column) => ({ name: names[column], share, column }))
    .sort((a, b) => b.share - a.share).slice(0, most);
}
