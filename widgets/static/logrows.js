// @ts-check
/** A row of the log: the rank, the time, and the text in its colours. */

import { markMatches, styledText } from "./ansi.js";
import { element } from "./dom.js";

/**
 * @import { Line, LogSearch } from "./logwindow.js"
 */

/** @typedef {{notice: string, height?: number}} Notice a row with a text of the dashboard's own */
/** @typedef {Line | Notice} Item */

const ROW_HEIGHT = 18; // pixels, as in panels.css
const CHARACTER_WIDTH = 7.3; // about; rows are measured later
const PREFIX_WIDTH = 110;
const GOLDEN_ANGLE = 137.508; // degrees; neighbours get hues far apart, and no two ranks get the same hue

/**
 * The hue of a rank: the same in each view, for any selection.
 *
 * @param {number} rank
 */
function hueOf(rank) {
  return Math.round((rank * GOLDEN_ANGLE) % 360);
}

/**
 * The time of day to the millisecond, in the browser's time zone.
 *
 * @param {number} seconds since 1970
 */
function timeOfDay(seconds) {
  const date = new Date(seconds * 1000);
  return `${date.toTimeString().slice(0, 8)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/**
 * An estimate of a row's height.
 *
 * @param {Item} line
 * @param {boolean} isWrapped
 * @param {number} width of the list
 */
export function guessHeight(line, isWrapped, width) {
  if (!isWrapped || "notice" in line) return ROW_HEIGHT;
  const columns = Math.max(20, (width - PREFIX_WIDTH) / CHARACTER_WIDTH);
  return ROW_HEIGHT * Math.max(1, Math.ceil(line.plain.length / columns));
}

/**
 * The element of a row.
 *
 * @param {Item} line
 * @param {LogSearch} search whose matches are marked
 */
export function makeLogRow(line, search) {
  if ("notice" in line) return element("div", { class: "meshbook-log-row meshbook-log-notice" }, line.notice);
  const text = styledText(line.text, line.styles);
  text.classList.add("meshbook-log-text");
  if (search.pattern) markMatches(text, search.pattern, "meshbook-log-match");
  const row = element(
    "div",
    {
      class: "meshbook-log-row",
      style: { "--meshbook-hue": hueOf(line.rank) },
      dataset: { rank: line.rank, serial: line.serial ?? "" },
    },
    ...prefixOf(line),
    text,
  );
  row.classList.toggle("meshbook-log-stderr", line.stream === "stderr");
  row.classList.toggle("meshbook-log-live", Boolean(line.isLive));
  row.classList.toggle("meshbook-log-current", line === search.current);
  return row;
}

/**
 * The style sheet shows these attributes before the text. So a marked row contains only the text of the rank.
 *
 * @param {Line} line
 */
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

/** @param {Line} line */
function titleOf({ rank, stream, cell, time }) {
  const when = time === null ? "not complete yet" : timeOfDay(time);
  return [`rank ${rank}`, stream, cell === null ? "no cell" : `cell ${cell}`, when].join(" · ");
}
