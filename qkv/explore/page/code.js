// Textbook code with syntax highlighting.
// One regular expression finds comments, strings, keywords and names; everything else stays plain text.
// The result is a <pre> of spans.

import { make } from "./dom.js";
import { t } from "./words.js";

const KEYWORDS = "def class return if else elif for in while import from not and or is None True False "
  + "lambda self yield with as raise assert";
const HIGHLIGHTED = new RegExp([
  '(?<string>"""[\\s\\S]*?"""|"(?:[^"\\\\\\n]|\\\\.)*"|\'(?:[^\'\\\\\\n]|\\\\.)*\')',
  "(?<comment>#[^\\n]*)",
  "(?<=\\b(?:def|class)\\s+)(?<name>\\w+)",
  `\\b(?<keyword>${KEYWORDS.replaceAll(" ", "|")})\\b`,
].join("|"), "g");

export function highlight(source) {
  const parts = [];
  let end = 0;
  for (const match of source.matchAll(HIGHLIGHTED)) {
    const [kind] = Object.entries(match.groups).find(([, text]) => text !== undefined);
    parts.push(source.slice(end, match.index), make("span", { class: `code-${kind}` }, match[0]));
    end = match.index + match[0].length;
  }
  return make("pre", { tabindex: 0 }, make("code", {}, ...parts, source.slice(end)));
}

// The card beside a step; null if the textbook has no code for it.
export function codeCard(code) {
  if (!code) return null;
  return make("aside", { class: "card code-card", "data-code": code.name },
    make("h3", {}, t("textbook"), make("code", {}, code.file)), highlight(code.source));
}
