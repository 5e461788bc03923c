// Textbook code, lightly coloured.
// In: Python source. Out: a <pre> of spans; comments and docstrings are quiet, keywords and names stand out.
// One regular expression finds what is coloured; everything else stays plain text.

import { make } from "./dom.js";
import { t } from "./words.js";

const KEYWORDS = "def class return if else elif for in while import from not and or is None True False "
  + "lambda self yield with as raise assert";
const COLOURED = new RegExp([
  '(?<text>"""[\\s\\S]*?"""|"(?:[^"\\\\\\n]|\\\\.)*"|\'(?:[^\'\\\\\\n]|\\\\.)*\')',
  "(?<note>#[^\\n]*)",
  "(?<=\\b(?:def|class)\\s+)(?<name>\\w+)",
  `\\b(?<key>${KEYWORDS.replaceAll(" ", "|")})\\b`,
].join("|"), "g");

export function coloured(source) {
  const parts = [];
  let at = 0;
  for (const match of source.matchAll(COLOURED)) {
    const [kind] = Object.entries(match.groups).find(([, text]) => text !== undefined);
    parts.push(source.slice(at, match.index), make("span", { class: `code-${kind}` }, match[0]));
    at = match.index + match[0].length;
  }
  return make("pre", { tabindex: 0 }, make("code", {}, ...parts, source.slice(at)));
}

// The card beside a step; nothing when a step has no code in the textbook.
export function book(code) {
  if (!code) return null;
  return make("aside", { class: "card book", "data-code": code.name },
    make("h3", {}, t("textbook"), make("code", {}, code.file)), coloured(code.source));
}
