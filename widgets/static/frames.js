/** Gathers what has changed, and draws it once in the browser's next frame. */

const MEASURE = "meshbook:frame"; // what a PerformanceObserver sees of each frame: how long the drawing took

export class Frames {
  #draw;
  #changed = new Set();
  #asked = null;

  /** `draw(changed)` with the Set of all that was named since it was called last. */
  constructor(draw) {
    this.#draw = draw;
  }

  /** Has these names drawn with the next frame. */
  ask(names) {
    for (const name of names) this.#changed.add(name);
    this.#asked ??= requestAnimationFrame(this.#frame);
  }

  stop() {
    if (this.#asked !== null) cancelAnimationFrame(this.#asked);
  }

  #frame = () => {
    this.#asked = null;
    const changed = this.#changed;
    this.#changed = new Set();
    const start = performance.now();
    this.#draw(changed);
    performance.measure(MEASURE, { start, end: performance.now() });
    performance.clearMeasures(MEASURE); // observers have it; the page would keep all of them for ever
  };
}
