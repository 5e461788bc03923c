// Numbers as colours that everyone can tell apart.
// In: a value and its range. Out: a packed pixel; shares run from paper to deep blue, signed values blue to orange.
// Both scales change in lightness all the way, so they also work without colour vision, and in print.

const SHARES = {
  light: ["#fdfcf8", "#dcebdf", "#a6d3c4", "#5fb3b0", "#2d869c", "#21587f", "#2a2c55"],
  dark: ["#191c21", "#24354d", "#2b5877", "#2f8189", "#5cab8b", "#a9d089", "#f7f0a3"],
};
const SIGNED = {
  light: ["#14427a", "#4583bb", "#a5c8e1", "#f8f6f1", "#f5c48d", "#dc7d2c", "#8a3d06"],
  dark: ["#8cc4ff", "#4a8fd0", "#2a527f", "#1b1e23", "#7d4a1c", "#cf7d2d", "#ffc684"],
};
const LEVELS = 256, LARGE = 900;
const made = new Map();

export function theme() {
  return document.documentElement.dataset.theme === "dark" ? "dark" : "light";
}

// 256 packed pixels (little-endian ABGR) of a scale: "share" or "signed".
export function scale(kind) {
  const key = `${kind} ${theme()}`;
  if (!made.has(key)) made.set(key, ramp((kind === "signed" ? SIGNED : SHARES)[theme()].map(rgb)));
  return made.get(key);
}

function ramp(stops) {
  const pixels = new Uint32Array(LEVELS);
  for (let i = 0; i < LEVELS; i++) {
    const at = (i / (LEVELS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const [r, g, b] = stops[low].map((from, c) => Math.round(from + (at - low) * (stops[low + 1][c] - from)));
    pixels[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return pixels;
}

function rgb(hex) {
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

// The range that the colours span: from 0 for shares, the same distance both ways for signed values.
// In a large matrix a few numbers stand far above the rest; colours then end at what all but one in 200 stay below.
// Even looks stay pale: in a small one the colours reach at least to a half. `whole` is what stands for 1.
export function rangeOf(values, kind, whole = 1) {
  if (values.length > LARGE) return cutRange(values, kind);
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return [0, 1];
  if (kind === "share") return [0, Math.max(high, whole / 2)];
  const far = Math.max(Math.abs(low), Math.abs(high)) || 1;
  return [-far, far];
}

// [low, high, whether some lie beyond]; measured on some 20,000 of the numbers.
function cutRange(values, kind) {
  const step = Math.ceil(values.length / 20_000);
  const some = values.filter((value, i) => i % step === 0 && value && Number.isFinite(value));
  const sizes = Float32Array.from(some, Math.abs).sort();
  const high = sizes[Math.floor(0.995 * (sizes.length - 1))] || 1;
  return [kind === "share" ? 0 : -high, high, sizes.at(-1) > high];
}

// Each value as a pixel; what the mask forbids (-inf) and what is no number stay transparent.
export function paint(values, pixels, kind, [low, high]) {
  const colours = scale(kind);
  const step = (LEVELS - 1) / (high - low);
  for (let i = 0; i < values.length; i++) {
    const level = Math.round((values[i] - low) * step);
    pixels[i] = Number.isFinite(values[i]) ? colours[Math.max(0, Math.min(LEVELS - 1, level))] : 0;
  }
}

// A colour for CSS and SVG.
export function colourOf(value, kind, range) {
  return `rgb(${channels(value, kind, range).join(" ")})`;
}

// Letters that can be read on this colour: dark ones on a light cell, light ones on a dark cell.
export function inkOn(value, kind, range) {
  const [r, g, b] = channels(value, kind, range);
  return 0.3 * r + 0.59 * g + 0.11 * b > 140 ? "#1d2126" : "#f4f2ec";
}

function channels(value, kind, [low, high]) {
  const level = Math.round(((value - low) / (high - low)) * (LEVELS - 1));
  const pixel = scale(kind)[Math.max(0, Math.min(LEVELS - 1, level || 0))];
  return [pixel & 255, (pixel >> 8) & 255, (pixel >> 16) & 255];
}
