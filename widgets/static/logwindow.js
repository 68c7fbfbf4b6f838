// @ts-check
/**
 * The lines of the log that a view has, a range without gaps of the kernel's lines, and the search in them. Pure: replies of
 * the kernel come in, and the next question comes out.
 */

import { plainText, stylesAfter } from "./ansi.js";

/**
 * @import { LiveLogLine, LogLine, LogsMessage, LogsReply } from "./protocol.d.ts"
 */

/** @typedef {Pick<LogsMessage, "after" | "before" | "limit">} LogQuestion */
/**
 * A line in a view. A live line, which a rank has not finished, has neither serial nor time.
 *
 * @typedef {object} Line
 * @property {number | null} serial
 * @property {number | null} time seconds since 1970
 * @property {number} rank
 * @property {string} stream
 * @property {number | null} cell
 * @property {string} text
 * @property {string[]} styles the colours at its start
 * @property {string} plain the text without colours
 * @property {boolean} isLive
 * @property {number} [height] in pixels, once it is measured
 */
/** @typedef {Line & {serial: number, time: number}} FinishedLine */

export const LINES_A_REQUEST = 500;
const MOST_LINES = 100000; // in a view; beyond that, lines at the other end are discarded
const SPARE_LINES = 5000; // that are discarded at once, so that not each reply copies a hundred thousand

/**
 * @param {LogLine} line
 * @param {string[]} styles
 * @returns {FinishedLine}
 */
function makeLine([serial, time, rank, stream, cell, text], styles) {
  return { serial, time, rank, stream, cell, text, styles, plain: plainText(text), isLive: false };
}

/**
 * @param {LiveLogLine} line
 * @param {string[]} styles
 * @returns {Line}
 */
function makeLiveLine([rank, stream, cell, text], styles) {
  return { serial: null, time: null, rank, stream, cell, text, styles, plain: plainText(text), isLive: true };
}

export class LogWindow {
  /** @type {FinishedLine[]} */
  lines = [];
  /** @type {Line[]} */
  live = [];
  dropped = 0; // older lines that the kernel has discarded
  matches = 0; // how many of the kernel's lines match, as far as it has counted
  isPartial = false; // the kernel's search ran out of time
  reachesStart = false;
  reachesEnd = true;
  #next = 0; // the serial from which to ask for lines; 0: the newest
  /** @type {Map<string, string[]>} by rank and stream, after the last line */
  #styles = new Map();
  /** @type {number | null} matches before `next`; unknown once the window was moved */
  #counted = 0;

  /** Starts anew: the next question asks for the newest lines. */
  clear() {
    this.lines = [];
    this.live = [];
    this.dropped = 0;
    this.matches = 0;
    this.isPartial = false;
    this.reachesStart = false;
    this.reachesEnd = true;
    this.#next = 0;
    this.#counted = 0;
    this.#styles = new Map();
  }

  /**
   * The question for the lines after these.
   *
   * @returns {LogQuestion}
   */
  get newerQuestion() {
    return { after: this.#next, before: null, limit: LINES_A_REQUEST };
  }

  /**
   * The question for the lines before these.
   *
   * @returns {LogQuestion}
   */
  get olderQuestion() {
    return { after: 0, before: this.lines[0]?.serial ?? null, limit: LINES_A_REQUEST };
  }

  /**
   * Takes the reply to `newerQuestion` and returns the lines that were added.
   *
   * @param {LogsReply} reply
   */
  takeNewer(reply) {
    const isFirst = this.#next === 0;
    const added = this.#made(reply.lines, this.#styles);
    this.live = reply.live.map((row) => makeLiveLine(row, this.#styles.get(keyOf(row[0], row[1])) ?? []));
    this.lines.push(...added);
    if (isFirst) this.reachesStart = reply.lines.length < LINES_A_REQUEST && !reply.partial;
    this.#next = Math.max(1, reply.next);
    this.reachesEnd = !(reply.next < reply.end);
    this.#note(reply);
    if (this.lines.length > MOST_LINES) this.#dropOldest();
    return added;
  }

  /**
   * Takes the reply to `olderQuestion` and returns the lines that were added.
   *
   * @param {LogsReply} reply
   */
  takeOlder(reply) {
    const added = this.#made(reply.lines, new Map());
    this.lines = [...added, ...this.lines];
    this.reachesStart = added.length < LINES_A_REQUEST && !reply.partial;
    if (this.lines.length > MOST_LINES) this.#dropNewest();
    return added;
  }

  /**
   * Moves the window: it is empty now, and the next questions ask for lines around this serial.
   *
   * @param {number} serial
   */
  moveTo(serial) {
    const { matches } = this;
    this.clear();
    this.matches = matches;
    this.#counted = null;
    this.#next = serial;
    this.reachesEnd = false;
  }

  /**
   * @param {LogLine[]} rows
   * @param {Map<string, string[]>} styles is updated
   */
  #made(rows, styles) {
    return rows.map((row) => {
      const key = keyOf(row[2], row[3]);
      const before = styles.get(key) ?? [];
      styles.set(key, stylesAfter(before, row[5]));
      return makeLine(row, before);
    });
  }

  /** @param {LogsReply} reply */
  #note(reply) {
    this.dropped = reply.dropped;
    this.isPartial = reply.partial;
    if (this.#counted === null) return;
    this.matches = this.#counted + reply.matches;
    this.#counted = this.reachesEnd ? this.matches : this.#counted + reply.lines.length;
  }

  #dropOldest() {
    this.lines = this.lines.slice(this.lines.length - MOST_LINES + SPARE_LINES);
    this.reachesStart = false;
  }

  #dropNewest() {
    this.lines = this.lines.slice(0, MOST_LINES - SPARE_LINES);
    this.#next = this.lines[this.lines.length - 1].serial + 1;
    this.#styles = new Map();
    this.live = [];
    this.reachesEnd = false;
  }
}

/**
 * @param {number} rank
 * @param {string} stream
 */
function keyOf(rank, stream) {
  return `${rank} ${stream}`;
}

/**
 * A pattern that finds a text, ignoring case.
 *
 * @param {string} text
 */
export function patternOf(text) {
  return new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
}

/** The lines of a window that contain a text, and the current one. */
export class LogSearch {
  text = "";
  /** @type {RegExp | null} */
  pattern = null;
  /** @type {FinishedLine[]} in their order */
  found = [];
  /** @type {FinishedLine | null} */
  current = null;

  /**
   * Searches for another text.
   *
   * @param {string} text
   * @param {FinishedLine[]} lines
   */
  setText(text, lines) {
    this.text = text;
    this.pattern = text ? patternOf(text) : null;
    this.found = this.#foundIn(lines);
    this.current = null;
  }

  /**
   * Searches new lines, which are at the end or at the start.
   *
   * @param {FinishedLine[]} lines
   * @param {boolean} [atStart]
   */
  add(lines, atStart = false) {
    const found = this.#foundIn(lines);
    this.found = atStart ? [...found, ...this.found] : [...this.found, ...found];
  }

  /**
   * Forgets lines outside of these.
   *
   * @param {FinishedLine[]} lines
   */
  keepWithin(lines) {
    const [first, last] = [lines[0]?.serial ?? Infinity, lines.at(-1)?.serial ?? -Infinity];
    const [oldest, newest] = [this.found[0], this.found.at(-1)];
    if (oldest && newest && (oldest.serial < first || newest.serial > last))
      this.found = this.found.filter((line) => line.serial >= first && line.serial <= last);
  }

  /**
   * Moves by `steps` in the found lines: from none to the last one, and from a line that is no longer found to the next one.
   * Returns false if there is none.
   *
   * @param {number} steps
   */
  step(steps) {
    const at = this.#place();
    const index = at < 0 ? this.#nearest(steps) : at + steps;
    if (index < 0 || index >= this.found.length) return false;
    this.current = this.found[index];
    return true;
  }

  /**
   * Moves from the last found line to the first, or back.
   *
   * @param {number} steps
   */
  wrap(steps) {
    this.current = this.found.at(steps > 0 ? 0 : -1) ?? null;
  }

  /** "3 of 12", "12 found" or "not found". */
  get matchCount() {
    if (!this.text) return "";
    if (!this.found.length) return "not found";
    const at = this.#place();
    return at < 0 ? `${this.found.length} found` : `${at + 1} of ${this.found.length}`;
  }

  #place() {
    return this.current ? this.found.indexOf(this.current) : -1;
  }

  /** @param {number} steps */
  #nearest(steps) {
    if (!this.current) return this.found.length - 1;
    const { serial } = this.current;
    if (steps > 0) return this.found.findIndex((line) => line.serial >= serial);
    return this.found.findLastIndex((line) => line.serial <= serial);
  }

  /** @param {FinishedLine[]} lines */
  #foundIn(lines) {
    if (!this.pattern) return [];
    const once = new RegExp(this.pattern.source, "i");
    return lines.filter((line) => once.test(line.plain));
  }
}
