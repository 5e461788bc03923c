// Shares as bars: the chance of each next token, or how much of a look goes where.
// In: rows of { name, share, before }. Out: a list of bars; the mark on a bar is the share before a change.
// The exact number stands in data-value, the rounded one beside the bar.

import { make } from "./dom.js";

export function percent(share) {
  if (share > 0 && share < 0.0005) return "<0.1%";
  return `${(100 * share).toFixed(1)}%`;
}

export function bars(rows, longest = Math.max(...rows.map((row) => Math.max(row.share, row.before ?? 0))), kind = "bars") {
  return make("div", { class: kind, role: "list" }, ...rows.map((row) => bar(row, longest || 1)));
}

function bar({ name, share, before, id }, longest) {
  const track = make("span", { class: "track" }, make("i"));
  track.firstChild.style.width = `${(100 * share) / longest}%`;
  if (before !== undefined) {
    const mark = make("span", { class: "before", "data-before": before });
    mark.style.left = `calc(${(100 * before) / longest}% - 1px)`;
    track.append(mark);
  }
  return make("div", { class: share ? "bar" : "bar out", role: "listitem", "data-name": name, "data-id": id, "data-value": share },
    make("span", { title: name }, name), track, make("span", {}, percent(share)));
}

// The largest shares of a row, with the names of its columns.
export function largest(values, names, most = 8) {
  return Array.from(values, (share, column) => ({ name: names[column], share, column }))
    .sort((a, b) => b.share - a.share).slice(0, most);
}
