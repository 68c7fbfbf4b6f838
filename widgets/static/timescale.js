// @ts-check
/** The time scale of a timeline, the order of its lanes, and the spans in them. Pure. */

import { asClock } from "./units.js";

/** @import { LaneState, TimelineLane, TimelineSpan } from "./protocol.d.ts" */

/** @typedef {Exclude<LaneState, "idle">} BusyState the states that have spans */

/** @type {{name: BusyState, title: string}[]} */
export const KINDS = [
  { name: "running", title: "running" },
  { name: "collective", title: "in a collective" },
  { name: "waiting", title: "waiting" },
  { name: "transfer", title: "transfer" },
];
const SHORTEST = 1e-6; // seconds; recordings contain nothing shorter to zoom in to
const TICK_WIDTH = 90; // pixels, about

/** The range of time in view, of all from 0 to `seconds`. */
export class TimeScale {
  from = 0;
  to;

  /** @param {number} seconds */
  constructor(seconds) {
    this.seconds = Math.max(seconds, SHORTEST);
    this.to = this.seconds;
  }

  showAll() {
    [this.from, this.to] = [0, this.seconds];
  }

  get isWhole() {
    return this.from === 0 && this.to === this.seconds;
  }

  /**
   * Shows the range between two times, clipped to the whole.
   *
   * @param {number} one
   * @param {number} other
   */
  show(one, other) {
    const [from, to] = [Math.min(one, other), Math.max(one, other)];
    const length = Math.min(this.seconds, Math.max(SHORTEST, to - from));
    this.from = Math.max(0, Math.min(from, this.seconds - length));
    this.to = this.from + length;
  }

  /**
   * Shows `factor` times as much, and keeps `time` at its place.
   *
   * @param {number} time
   * @param {number} factor
   */
  zoom(time, factor) {
    this.show(time - (time - this.from) * factor, time + (this.to - time) * factor);
  }

  /**
   * Moves by a share of the range in view.
   *
   * @param {number} share
   */
  move(share) {
    const length = this.to - this.from;
    const from = Math.max(0, Math.min(this.from + share * length, this.seconds - length));
    [this.from, this.to] = [from, from + length];
  }

  /**
   * The place of a time in a view of this width.
   *
   * @param {number} time
   * @param {number} width
   */
  placeOf(time, width) {
    return ((time - this.from) / (this.to - this.from)) * width;
  }

  /**
   * The time at a place in a view of this width.
   *
   * @param {number} place
   * @param {number} width
   */
  timeAt(place, width) {
    return this.from + (place / width) * (this.to - this.from);
  }
}

/**
 * The times of the labels on the axis: 1, 2 or 5 of a unit apart.
 *
 * @param {TimeScale} scale
 * @param {number} width
 */
export function ticksOf(scale, width) {
  const wanted = ((scale.to - scale.from) * TICK_WIDTH) / Math.max(width, 1);
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = power * ([1, 2, 5].find((each) => each * power >= wanted) ?? 10);
  const ticks = [];
  for (let index = Math.ceil(scale.from / step); index * step <= scale.to; index++) ticks.push(index * step);
  return { ticks, step };
}

/**
 * The label of a tick, on an axis that ends at `to`: in one unit, with enough digits to tell ticks apart.
 *
 * @param {number} time
 * @param {number} step
 * @param {number} to
 */
export function tickText(time, step, to) {
  if (step >= 60) return asClock(time);
  const [unit, factor] = to >= 1 ? ["s", 1] : to >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6];
  const digits = Math.max(0, -Math.floor(Math.log10(step * factor) + 1e-9));
  return `${(time * factor).toFixed(digits)} ${unit}`;
}

/**
 * Seconds in a lane by state.
 *
 * @param {TimelineLane} lane
 */
function timesOf(lane) {
  /** @type {Record<LaneState, number>} */
  const times = { running: 0, collective: 0, waiting: 0, transfer: 0, idle: 0 };
  for (const [start, end, state] of lane.spans) times[state] += end - start;
  return times;
}

/** @typedef {"rank" | "work"} Order */

/**
 * Lanes by rank, or by how long they worked, the longest first: the other ranks waited for these.
 *
 * @param {TimelineLane[]} lanes
 * @param {Order} order
 */
export function orderLanes(lanes, order) {
  if (order !== "work") return [...lanes].sort((one, other) => one.rank - other.rank);
  const worked = lanes.map((lane) => ({ lane, seconds: timesOf(lane).running + timesOf(lane).transfer }));
  worked.sort((one, other) => other.seconds - one.seconds || one.lane.rank - other.lane.rank);
  return worked.map(({ lane }) => lane);
}

/**
 * The share of the ranks' time in each state; "idle" is the rest.
 *
 * @param {TimelineLane[]} lanes
 * @param {number} seconds
 */
export function sharesOf(lanes, seconds) {
  /** @type {Record<LaneState, number>} */
  const shares = { running: 0, collective: 0, waiting: 0, transfer: 0, idle: 1 };
  for (const lane of lanes) {
    const times = timesOf(lane);
    for (const { name } of KINDS) shares[name] += times[name] / (seconds * lanes.length);
  }
  shares.idle = Math.max(0, 1 - shares.running - shares.collective - shares.waiting - shares.transfer);
  return shares;
}

/**
 * The span of a lane at this time, or one that begins or ends within `slack` of it; null if the rank was idle.
 *
 * @param {TimelineLane} lane
 * @param {number} time
 * @param {number} slack
 */
export function spanAt(lane, time, slack) {
  const low = firstIndex(lane.spans, ([, end]) => end >= time - slack);
  const near = lane.spans.slice(low, low + 3).filter(([start]) => start <= time + slack);
  return near.find(([start, end]) => start <= time && time <= end) ?? near[0] ?? null;
}

/**
 * The index of the first span that ends after `time`, at which drawing begins.
 *
 * @param {TimelineSpan[]} spans
 * @param {number} time
 */
export function firstAfter(spans, time) {
  return firstIndex(spans, ([, end]) => end > time);
}

/**
 * The index of the first span for which the condition holds, by bisection: it holds for all later spans, too.
 *
 * @param {TimelineSpan[]} spans
 * @param {(span: TimelineSpan) => boolean} holds
 */
function firstIndex(spans, holds) {
  let [low, high] = [0, spans.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(spans[middle])) high = middle;
    else low = middle + 1;
  }
  return low;
}
