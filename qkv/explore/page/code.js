// Textbook code with syntax highlighting.
// One regular expression finds comments, strings, keywords and names; everything else stays plain text.
// The result is a <pre> of lines; a line that is wider than the column continues below its indentation.

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

const HANGING = 4;  // characters by which a continued line is indented further

export function highlight(source) {
  const lines = [[]];
  let end = 0;
  for (const match of source.matchAll(HIGHLIGHTED)) {
    const [kind] = Object.entries(match.groups).find(([, text]) => text !== undefined);
    addText(lines, source.slice(end, match.index), (text) => text);
    addText(lines, match[0], (text) => make("span", { class: `code-${kind}` }, text));
    end = match.index + match[0].length;
  }
  addText(lines, source.slice(end).trimEnd(), (text) => text);
  return make("pre", { tabindex: 0 }, make("code", {}, ...lines.map(lineOf)));
}

// Add a text that may have several lines to the lines so far; mark(text) is the node of one of them.
function addText(lines, text, mark) {
  const [first, ...others] = text.split("\n");
  lines.at(-1).push(mark(first));
  lines.push(...others.map((line) => [mark(line)]));
}

function lineOf(parts) {
  const line = make("span", { class: "code-line" }, ...parts, "\n");
  const indent = line.textContent.match(/^ */)[0].length + HANGING;
  Object.assign(line.style, { paddingLeft: `${indent}ch`, textIndent: `-${indent}ch` });
  return line;
}

// The card beside a step; null if the textbook has no code for it.
export function codeCard(code) {
  if (!code) return null;
  return make("aside", { class: "card code-card", "data-code": code.name },
    make("h3", {}, t("textbook"), make("code", {}, code.file)), highlight(code.source));
}
