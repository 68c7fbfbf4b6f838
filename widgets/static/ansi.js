/**
 * What a rank has printed, as a terminal would show it: colours become styles, all other control sequences go, and the
 * rest is text. Markup in it stays text: ansi_up escapes it, and lines without colours are never read as markup.
 */

import { AnsiUp } from "./vendor/ansi_up.js";

const COLOURS = /\x1b\[([\d;]*)m/g;
// Titles and links, movements of the cursor, choices of character sets, keys of two characters, and what is broken off.
// ansi_up would leave parts of them in the text, or wait for their end and lose the rest of the line.
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
const MOST_STYLES = 16; // that are carried from line to line: more of them without a reset say nothing new

/** The text without any control sequence: what is searched, copied and saved. */
export function plainText(text) {
  return text.replace(OTHER_CONTROLS, "").replace(COLOURS, "");
}

/** The styles, a list of sequences, that hold after `text`, where `before` held in front of it. */
export function stylesAfter(before, text) {
  if (!text.includes("\x1b[")) return before;
  let styles = before;
  for (const [sequence, codes] of text.matchAll(COLOURS)) {
    if (/^0*$/.test(codes)) styles = [];
    else styles = /^0*;/.test(codes) ? [sequence] : [...styles, sequence];
  }
  return styles.slice(-MOST_STYLES);
}

/** An element that shows `text` in its colours, the first of which are `styles` of the lines before. */
export function styledText(text, styles = []) {
  const shown = document.createElement("span");
  const coloured = styles.join("") + text.replace(OTHER_CONTROLS, "");
  if (!coloured.includes("\x1b")) {
    shown.textContent = coloured;
    return shown;
  }
  const painter = new AnsiUp(); // a new one for each line: it keeps colours, and sequences that have no end
  painter.use_classes = true;
  shown.innerHTML = painter.ansi_to_html(coloured);
  return shown;
}

/** Puts a `mark` around each place in `shown` at which `pattern` (global) is found, also across colours' borders. */
export function markMatches(shown, pattern, className) {
  const texts = [];
  const walker = document.createTreeWalker(shown, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) texts.push(walker.currentNode);
  const places = [...shown.textContent.matchAll(pattern)].filter((match) => match[0].length > 0);
  let start = 0;
  for (const text of texts) {
    const end = start + text.length;
    const within = places.map((match) => [match.index - start, match.index + match[0].length - start]);
    markIn(
      text,
      within.filter(([from, to]) => to > 0 && from < text.length),
      className,
    );
    start = end;
  }
}

function markIn(text, places, className) {
  const whole = text.data;
  for (const [from, to] of places.reverse()) {
    const [first, last] = [Math.max(0, from), Math.min(whole.length, to)];
    text.splitText(last);
    const found = text.splitText(first);
    const mark = document.createElement("mark");
    mark.className = className;
    found.replaceWith(mark);
    mark.append(found);
  }
}
