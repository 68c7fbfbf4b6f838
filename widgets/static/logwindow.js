/**
 * The lines of the log that a view has: a piece without gaps of what the kernel keeps, and what is found in it.
 *
 * Nothing is asked or shown here: replies of the kernel come in, and the next question comes out.
 */

import { plainText, stylesAfter } from "./ansi.js";

export const LINES_A_REQUEST = 500;
const MOST_LINES = 100000; // in a view: those at the other end go
const SPARE_LINES = 5000; // that go at once, so that not each reply moves a hundred thousand

/** A line as it is held: `plain` is its text without colours, `styles` are the colours that it begins with. */
function makeLine([serial, time, rank, stream, cell, text], styles) {
  return { serial, time, rank, stream, cell, text, styles, plain: plainText(text) };
}

export class LogWindow {
  lines = [];
  live = []; // rows without an end, as they are now
  dropped = 0;
  matches = 0; // lines that the kernel has of this kind, as far as it has counted
  isPartial = false; // the kernel did not look at all of its lines, for want of time
  reachesStart = false;
  reachesEnd = true;
  #next = 0; // the serial from which lines are asked for; 0: the newest
  #styles = new Map(); // by rank and stream, after the last line
  #counted = 0; // matches before `next`; null once the window was moved, as then they are not known

  /** Nothing is known: the next question asks for the newest lines. */
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
    this.#styles = new Map(); // by rank and stream, after the last line
  }

  /** What is asked for the lines after those that are here. */
  get newerQuestion() {
    return { after: this.#next, before: null, limit: LINES_A_REQUEST };
  }

  /** And for those before. */
  get olderQuestion() {
    return { after: 0, before: this.lines[0]?.serial ?? null, limit: LINES_A_REQUEST };
  }

  /** Takes the reply to `newerQuestion`; returns the lines that were added. */
  takeNewer(reply) {
    const isFirst = this.#next === 0;
    const added = this.#made(reply.lines, this.#styles);
    this.live = reply.live.map((row) => this.#madeLive(row));
    this.lines.push(...added);
    if (isFirst) this.reachesStart = reply.lines.length < LINES_A_REQUEST && !reply.partial;
    this.#next = Math.max(1, reply.next);
    this.reachesEnd = !(reply.next < reply.end);
    this.#note(reply);
    if (this.lines.length > MOST_LINES) this.#dropOldest();
    return added;
  }

  /** Takes the reply to `olderQuestion`; returns the lines that were added. */
  takeOlder(reply) {
    const added = this.#made(reply.lines, new Map());
    this.lines = [...added, ...this.lines];
    this.reachesStart = added.length < LINES_A_REQUEST && !reply.partial;
    if (this.lines.length > MOST_LINES) this.#dropNewest();
    return added;
  }

  /** The window is to be around this serial: it holds nothing now, and the next questions are for what is there. */
  moveTo(serial) {
    const { matches } = this;
    this.clear();
    this.matches = matches;
    this.#counted = null;
    this.#next = serial;
    this.reachesEnd = false;
  }

  #made(rows, styles) {
    return rows.map((row) => {
      const key = `${row[2]} ${row[3]}`;
      const before = styles.get(key) ?? [];
      styles.set(key, stylesAfter(before, row[5]));
      return makeLine(row, before);
    });
  }

  #madeLive([rank, stream, cell, text]) {
    return {
      ...makeLine([null, null, rank, stream, cell, text], this.#styles.get(`${rank} ${stream}`) ?? []),
      isLive: true,
    };
  }

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
    this.#next = this.lines.at(-1).serial + 1;
    this.#styles = new Map();
    this.live = [];
    this.reachesEnd = false;
  }
}

/** A text as a pattern that finds it, in either case. */
export function patternOf(text) {
  return new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
}

/** The lines of a window in which a text is found, and the one at which the reader is. */
export class LogSearch {
  text = "";
  pattern = null; // of the text, or null
  found = []; // lines, in their order
  current = null;

  setText(text, lines) {
    this.text = text;
    this.pattern = text ? patternOf(text) : null;
    this.found = this.#foundIn(lines);
    this.current = null;
  }

  /** Lines have come at the end (or, `atStart`, at the beginning). */
  add(lines, atStart = false) {
    const found = this.#foundIn(lines);
    this.found = atStart ? [...found, ...this.found] : [...this.found, ...found];
  }

  /** Lines outside of these are gone. */
  keepWithin(lines) {
    const [first, last] = [lines[0]?.serial ?? Infinity, lines.at(-1)?.serial ?? -Infinity];
    if (this.found.length && (this.found[0].serial < first || this.found.at(-1).serial > last))
      this.found = this.found.filter((line) => line.serial >= first && line.serial <= last);
  }

  /** Goes on by `steps`; at first to the last one. Where `current` is found no more, to the next. False if there is none. */
  step(steps) {
    const at = this.found.indexOf(this.current);
    let index = at + steps;
    if (at < 0) index = this.#nearest(steps);
    if (index < 0 || index >= this.found.length) return false;
    this.current = this.found[index];
    return true;
  }

  /** Goes to the first found line after the last, or from the first to the last. */
  wrap(steps) {
    this.current = this.found.at(steps > 0 ? 0 : -1) ?? null;
  }

  /** "3 of 12", or what there is to say instead. */
  get tally() {
    if (!this.text) return "";
    if (!this.found.length) return "not found";
    const at = this.found.indexOf(this.current);
    return at < 0 ? `${this.found.length} found` : `${at + 1} of ${this.found.length}`;
  }

  #nearest(steps) {
    if (!this.current) return this.found.length - 1;
    const { serial } = this.current;
    if (steps > 0) return this.found.findIndex((line) => line.serial >= serial);
    return this.found.findLastIndex((line) => line.serial <= serial);
  }

  #foundIn(lines) {
    if (!this.pattern) return [];
    const once = new RegExp(this.pattern.source, "i");
    return lines.filter((line) => once.test(line.plain));
  }
}
