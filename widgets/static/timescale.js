/** What a timeline shows of a cell: which piece of time, in which order, and what is where. Pure. */

import { asClock } from "./units.js";

export const KINDS = [
  { name: "running", title: "running" },
  { name: "collective", title: "in a collective" },
  { name: "waiting", title: "waiting" },
  { name: "transfer", title: "transfer" },
];
const SHORTEST = 1e-6; // seconds that a view may be zoomed in to: nothing shorter is recorded
const TICK_WIDTH = 90; // pixels, nearly

/** The piece of time that is in view, of all from 0 to `seconds`. */
export class TimeScale {
  constructor(seconds) {
    this.seconds = Math.max(seconds, SHORTEST);
    this.showAll();
  }

  showAll() {
    [this.from, this.to] = [0, this.seconds];
  }

  get isWhole() {
    return this.from === 0 && this.to === this.seconds;
  }

  /** Shows from one time to the other, as far as there is time. */
  show(one, other) {
    const [from, to] = [Math.min(one, other), Math.max(one, other)];
    const length = Math.min(this.seconds, Math.max(SHORTEST, to - from));
    this.from = Math.max(0, Math.min(from, this.seconds - length));
    this.to = this.from + length;
  }

  /** Shows `factor` times as much, and what is at `time` stays where it is. */
  zoom(time, factor) {
    this.show(time - (time - this.from) * factor, time + (this.to - time) * factor);
  }

  /** Moves on by a share of what is in view. */
  move(share) {
    const length = this.to - this.from;
    const from = Math.max(0, Math.min(this.from + share * length, this.seconds - length));
    [this.from, this.to] = [from, from + length];
  }

  /** Where a time is, in a view so wide; and which time is there. */
  placeOf(time, width) {
    return ((time - this.from) / (this.to - this.from)) * width;
  }

  timeAt(place, width) {
    return this.from + (place / width) * (this.to - this.from);
  }
}

/** The times at which the axis has a word, 1, 2 or 5 of a unit apart. */
export function ticksOf(scale, width) {
  const wanted = ((scale.to - scale.from) * TICK_WIDTH) / Math.max(width, 1);
  const power = 10 ** Math.floor(Math.log10(wanted));
  const step = power * ([1, 2, 5].find((each) => each * power >= wanted) ?? 10);
  const ticks = [];
  for (let index = Math.ceil(scale.from / step); index * step <= scale.to; index++) ticks.push(index * step);
  return { ticks, step };
}

/** The word of a tick, on an axis that ends at `to`: in one unit, with as many digits as tell ticks apart. */
export function tickText(time, step, to) {
  if (step >= 60) return asClock(time);
  const [unit, factor] = to >= 1 ? ["s", 1] : to >= 1e-3 ? ["ms", 1e3] : ["µs", 1e6];
  const digits = Math.max(0, -Math.floor(Math.log10(step * factor) + 1e-9));
  return `${(time * factor).toFixed(digits)} ${unit}`;
}

/** Seconds in a lane by kind. */
function timesOf(lane) {
  const times = { running: 0, collective: 0, waiting: 0, transfer: 0 };
  for (const [start, end, kind] of lane.spans) if (kind in times) times[kind] += end - start;
  return times;
}

/** Lanes by rank, or those first that were at work for longest: the others waited for them. */
export function orderLanes(lanes, order) {
  if (order !== "work") return [...lanes].sort((one, other) => one.rank - other.rank);
  const work = new Map(lanes.map((lane) => [lane, timesOf(lane).running + timesOf(lane).transfer]));
  return [...lanes].sort((one, other) => work.get(other) - work.get(one) || one.rank - other.rank);
}

/** The share of all ranks' time that went into each kind, and "idle" for the rest. */
export function sharesOf(lanes, seconds) {
  const shares = { running: 0, collective: 0, waiting: 0, transfer: 0, idle: 1 };
  for (const lane of lanes) {
    for (const [kind, time] of Object.entries(timesOf(lane))) shares[kind] += time / (seconds * lanes.length);
  }
  shares.idle = Math.max(0, 1 - shares.running - shares.collective - shares.waiting - shares.transfer);
  return shares;
}

/** The span of a lane at this time, or one that begins or ends within `slack` of it; null where it is idle. */
export function spanAt(lane, time, slack) {
  let [low, high] = [0, lane.spans.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (lane.spans[middle][1] < time - slack) low = middle + 1;
    else high = middle;
  }
  const near = lane.spans.slice(low, low + 3).filter(([start]) => start <= time + slack);
  return near.find(([start, end]) => start <= time && time <= end) ?? near[0] ?? null;
}

/** The index of the first span that ends after `time`: with this one drawing begins. */
export function firstAfter(spans, time) {
  let [low, high] = [0, spans.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle][1] <= time) low = middle + 1;
    else high = middle;
  }
  return low;
}
