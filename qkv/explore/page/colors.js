// Color scales for heat maps: sequential for probabilities, diverging for signed values.
// A value and its range give a packed pixel.
// Lightness is monotonic in the value, so the scales work without color vision and in print.

const SEQUENTIAL = {
  light: ["#fdfcf8", "#dcebdf", "#a6d3c4", "#5fb3b0", "#2d869c", "#21587f", "#2a2c55"],
  dark: ["#191c21", "#24354d", "#2b5877", "#2f8189", "#5cab8b", "#a9d089", "#f7f0a3"],
};
const DIVERGING = {
  light: ["#14427a", "#4583bb", "#a5c8e1", "#f8f6f1", "#f5c48d", "#dc7d2c", "#8a3d06"],
  dark: ["#8cc4ff", "#4a8fd0", "#2a527f", "#1b1e23", "#7d4a1c", "#cf7d2d", "#ffc684"],
};
const LEVELS = 256;
const MAX_UNCLIPPED = 900;  // values; larger matrices have a clipped range
const scales = new Map();

export function theme() {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

// 256 packed pixels (little-endian ABGR) of a scale: "probability" or "signed".
export function scale(kind) {
  const key = `${kind} ${theme()}`;
  if (!scales.has(key)) scales.set(key, ramp((kind === "signed" ? DIVERGING : SEQUENTIAL)[theme()].map(rgb)));
  return scales.get(key);
}

function ramp(stops) {
  const pixels = new Uint32Array(LEVELS);
  for (let i = 0; i < LEVELS; i++) {
    const x = (i / (LEVELS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(x), stops.length - 2);
    const [r, g, b] = stops[low].map((from, c) => Math.round(from + (x - low) * (stops[low + 1][c] - from)));
    pixels[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return pixels;
}

function rgb(hex) {
  return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
}

// The range of the color scale: from 0 for probabilities, symmetric for signed values.
// A large matrix has outliers; its range ends at the 99.5th percentile.
// In a small one the range of probabilities is at least 0.5, so that uniform weights stay pale. `unit`: the value of 1.
export function rangeOf(values, kind, unit = 1) {
  if (values.length > MAX_UNCLIPPED) return clippedRange(values, kind);
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 1];
  if (kind === "probability") return [0, Math.max(high, unit / 2)];
  const limit = Math.max(Math.abs(low), Math.abs(high)) || 1;
  return [-limit, limit];
}

// [low, high, whether values are clipped]; estimated from about 20,000 of the values.
function clippedRange(values, kind) {
  const step = Math.ceil(values.length / 20_000);
  const sample = values.filter((value, i) => i % step === 0 && value && Number.isFinite(value));
  const sizes = Float32Array.from(sample, Math.abs).sort();
  const high = sizes[Math.floor(0.995 * (sizes.length - 1))] || 1;
  return [kind === "probability" ? 0 : -high, high, sizes.at(-1) > high];
}

// Each value as a pixel; masked scores (-inf) and NaN are transparent.
export function paint(values, pixels, kind, [low, high]) {
  const colors = scale(kind);
  const step = (LEVELS - 1) / (high - low);
  for (let i = 0; i < values.length; i++) {
    const level = Math.round((values[i] - low) * step);
    pixels[i] = Number.isFinite(values[i]) ? colors[Math.max(0, Math.min(LEVELS - 1, level))] : 0;
  }
}

// The color of a value, for CSS and SVG.
export function colorOf(value, kind, range) {
  return `rgb(${channels(value, kind, range).join(" ")})`;
}

// A readable text color: dark on a light cell, light on a dark cell.
export function textColorOn(value, kind, range) {
  const [r, g, b] = channels(value, kind, range);
  return 0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#1d2126" : "#f4f2ec";
}

function channels(value, kind, [low, high]) {
  const level = Math.round(((value - low) / (high - low)) * (LEVELS - 1));
  const pixel = scale(kind)[Math.max(0, Math.min(LEVELS - 1, level || 0))];
  return [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
}
