// @ts-check
/**
 * Output of a rank as a terminal would show it: colours become styles, and other control sequences are removed. Markup
 * stays text: ansi_up escapes it, and lines without colours are never parsed as markup.
 */

import { AnsiUp } from "./vendor/ansi_up.js";

// biome-ignore lint/suspicious/noControlCharactersInRegex: these are ANSI sequences
const COLOURS = /\x1b\[([\d;]*)m/g;
// Titles and links, cursor movements, character sets, two-character sequences, and incomplete ones. ansi_up would leave
// parts of them in the text, or wait for their end and lose the rest of the line.
const OTHER_CONTROLS = new RegExp(
  [
    "\\x1b\\][^\\x07\\x1b]*(?:\\x07|\\x1b\\\\)",
    "\\x1b\\[(?![\\d;]*m)[\\x30-\\x3f]*[\\x20-\\x2f]*[\\x40-\\x7e]",
    "\\x1b[()][0-9A-Za-z]",
    "\\x1b[0-Z\\\\^-~]",
    "\\x1b(?!\\[[\\d;]*m)",
    "[\\x00-\\x08\\x0a-\\x1a\\x1c-\\x1f\\x7f]",
  ].join("|"),
  "g",
);
const MOST_STYLES = 16; // that are carried from line to line; older ones without a reset rarely matter

/**
 * The text without control sequences, for searching, copying and saving.
 *
 * @param {string} text
 */
export function plainText(text) {
  return text.replace(OTHER_CONTROLS, "").replace(COLOURS, "");
}

/**
 * The styles, as a list of sequences, that apply after `text` if `before` apply at its start.
 *
 * @param {string[]} before
 * @param {string} text
 * @returns {string[]}
 */
export function stylesAfter(before, text) {
  if (!text.includes("\x1b[")) return before;
  let styles = before;
  for (const [sequence, codes] of text.matchAll(COLOURS)) {
    if (/^0*$/.test(codes)) styles = [];
    else styles = /^0*;/.test(codes) ? [sequence] : [...styles, sequence];
  }
  return styles.slice(-MOST_STYLES);
}

/**
 * An element that shows `text` in its colours. `styles` come from the lines before.
 *
 * @param {string} text
 * @param {string[]} styles
 */
export function styledText(text, styles = []) {
  const shown = document.createElement("span");
  const coloured = styles.join("") + text.replace(OTHER_CONTROLS, "");
  if (!coloured.includes("\x1b")) {
    shown.textContent = coloured;
    return shown;
  }
  const painter = new AnsiUp(); // one for each line: it would keep colours and incomplete sequences
  painter.use_classes = true;
  shown.innerHTML = painter.ansi_to_html(coloured);
  return shown;
}

/**
 * Puts a `mark` around each match in an element, also where the match spans several colours.
 *
 * @param {HTMLElement} shown
 * @param {RegExp} pattern global
 * @param {string} className
 */
export function markMatches(shown, pattern, className) {
  /** @type {Text[]} */
  const texts = [];
  const walker = document.createTreeWalker(shown, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) texts.push(/** @type {Text} */ (walker.currentNode));
  const matches = [...(shown.textContent ?? "").matchAll(pattern)].filter((match) => match[0].length > 0);
  let start = 0;
  for (const text of texts) {
    const end = start + text.length;
    const within = matches.map((match) => ({ from: match.index - start, to: match.index + match[0].length - start }));
    const places = within.filter(({ from, to }) => to > 0 && from < text.length);
    markIn(text, places, className);
    start = end;
  }
}

/**
 * @param {Text} text
 * @param {{from: number, to: number}[]} places
 * @param {string} className
 */
function markIn(text, places, className) {
  const whole = text.data;
  for (const { from, to } of places.reverse()) {
    const [first, last] = [Math.max(0, from), Math.min(whole.length, to)];
    text.splitText(last);
    const found = text.splitText(first);
    const mark = document.createElement("mark");
    mark.className = className;
    found.replaceWith(mark);
    mark.append(found);
  }
}
