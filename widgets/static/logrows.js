/** A row of the log: whose line it is, when it came, and its text in its colours. */

import { markMatches, styledText } from "./ansi.js";
import { element } from "./dom.js";

const ROW_HEIGHT = 18; // pixels, as in panels.css
const CHARACTER_WIDTH = 7.3; // nearly; rows are measured
const PREFIX_WIDTH = 110;
const GOLDEN_ANGLE = 137.508; // degrees: neighbours get hues far apart, and no two ranks the same

/** The hue of a rank: the same in each view, whatever the others are. */
function hueOf(rank) {
  return Math.round((rank * GOLDEN_ANGLE) % 360);
}

/** The time of day to the millisecond, as the browser's clock has it. */
function timeOfDay(seconds) {
  const date = new Date(seconds * 1000);
  return `${date.toTimeString().slice(0, 8)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** How high a row will be, in a list so wide: a guess. */
export function guessHeight(line, isWrapped, width) {
  if (!isWrapped || line.notice) return ROW_HEIGHT;
  const columns = Math.max(20, (width - PREFIX_WIDTH) / CHARACTER_WIDTH);
  return ROW_HEIGHT * Math.max(1, Math.ceil(line.plain.length / columns));
}

/** A row with a word of ours instead of a line. */
export function makeNotice(notice) {
  return { notice };
}

/** The element of a line. `search` is the LogSearch whose matches are marked. */
export function makeLogRow(line, search) {
  if (line.notice) return element("div", { class: "meshbook-log-row meshbook-log-notice" }, line.notice);
  const text = styledText(line.text, line.styles);
  text.classList.add("meshbook-log-text");
  if (search.pattern) markMatches(text, search.pattern, "meshbook-log-match");
  const row = element(
    "div",
    {
      class: "meshbook-log-row",
      style: { "--meshbook-hue": hueOf(line.rank) },
      dataset: { rank: line.rank, serial: line.serial },
    },
    ...prefixOf(line),
    text,
  );
  row.classList.toggle("meshbook-log-stderr", line.stream === "stderr");
  row.classList.toggle("meshbook-log-live", Boolean(line.isLive));
  row.classList.toggle("meshbook-log-current", line === search.current);
  return row;
}

// What stands before the text is in attributes, and shown by the style sheet: who marks rows gets what the rank said.
function prefixOf(line) {
  const cell = line.cell === null ? "" : `c${line.cell}`;
  return [
    element("span", { class: "meshbook-log-rank", title: titleOf(line), dataset: { text: line.rank } }),
    element("span", { class: "meshbook-log-cell", dataset: { text: cell } }),
    element("span", {
      class: "meshbook-log-time",
      dataset: { text: line.time === null ? "now" : timeOfDay(line.time) },
    }),
  ];
}

function titleOf({ rank, stream, cell, time }) {
  const when = time === null ? "not ended yet" : timeOfDay(time);
  return [`rank ${rank}`, stream, cell === null ? "no cell" : `cell ${cell}`, when].join(" · ");
}
