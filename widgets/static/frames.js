// @ts-check
/** Collects changes, and draws them once in the browser's next frame. */

/** @import { Change } from "./context.d.ts" */

const MEASURE = "meshbook:frame"; // the entry of each frame in the browser's performance timeline: how long it took

export class Frames {
  #draw;
  /** @type {Set<Change>} */
  #changed = new Set();
  /** @type {number | null} */
  #requested = null;

  /** @param {(changed: Set<Change>) => void} draw gets all changes since the last call */
  constructor(draw) {
    this.#draw = draw;
  }

  /**
   * Has these changes drawn with the next frame.
   *
   * @param {Iterable<Change>} changes
   */
  request(changes) {
    for (const change of changes) this.#changed.add(change);
    this.#requested ??= requestAnimationFrame(this.#frame);
  }

  stop() {
    if (this.#requested !== null) cancelAnimationFrame(this.#requested);
  }

  #frame = () => {
    this.#requested = null;
    const changed = this.#changed;
    this.#changed = new Set();
    const start = performance.now();
    this.#draw(changed);
    performance.measure(MEASURE, { start, end: performance.now() });
    performance.clearMeasures(MEASURE); // observers have received it, and the page would keep all entries
  };
}
