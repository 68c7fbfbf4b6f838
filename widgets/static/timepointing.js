// @ts-check
/** Input on the canvas of a timeline by mouse, touch and keyboard: pointing, zooming, choosing ranks. */

import { AXIS_HEIGHT, LABEL_WIDTH } from "./timedraw.js";
import { KINDS, spanAt } from "./timescale.js";
import { asSeconds } from "./units.js";

/**
 * @import { TimelineLane } from "./protocol.d.ts"
 * @import { TimelineView } from "./timedraw.js"
 * @import { TimeScale } from "./timescale.js"
 */

/**
 * @typedef {object} TimePointingListeners
 * @property {() => void} changed the view has to be drawn again
 * @property {(rank: number, isMore: boolean) => void} chose
 * @property {(text: string | null, x: number, y: number) => void} pointed with a text about the place, or null
 * @property {(lane: TimelineLane) => void} reached by the keyboard
 */

const DRAGGED_FROM = 4; // pixels; a shorter drag is a click
const NEAR = 3; // pixels within which a span counts as pointed at
const ZOOM = 1.25; // for a notch of the wheel

export class TimePointing {
  #canvas;
  #scroller;
  #view;
  #on;
  /** @type {{x: number, time: number} | null} where the button was pressed */
  #drag = null;

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {HTMLElement} scroller
   * @param {TimelineView} view its `scale`, `cursor`, `pointed` and `brush` are changed here
   * @param {TimePointingListeners} on
   */
  constructor(canvas, scroller, view, on) {
    this.#canvas = canvas;
    this.#scroller = scroller;
    this.#view = view;
    this.#on = on;
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#release(event));
    canvas.addEventListener("pointercancel", () => this.#cancel());
    canvas.addEventListener("pointerleave", () => this.#leave());
    canvas.addEventListener("dblclick", () => this.#change((scale) => scale.showAll()));
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  /** @param {(scale: TimeScale) => void} change */
  #change(change) {
    change(this.#view.scale);
    this.#on.changed();
  }

  /**
   * The time and the lane (or null) at the pointer.
   *
   * @param {MouseEvent} event
   */
  #at(event) {
    const { lanes, laneHeight, scale } = this.#view;
    const width = this.#canvas.clientWidth - LABEL_WIDTH;
    const x = Math.max(0, Math.min(event.offsetX - LABEL_WIDTH, width));
    const index = Math.floor((event.offsetY - AXIS_HEIGHT + this.#scroller.scrollTop) / laneHeight);
    return { time: scale.timeAt(x, width), lane: event.offsetY < AXIS_HEIGHT ? null : (lanes[index] ?? null) };
  }

  /**
   * Zooms with Ctrl, which trackpads send for a pinch. Without Ctrl the wheel scrolls lanes and page, as elsewhere.
   *
   * @param {WheelEvent} event
   */
  #wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault(); // the browser would zoom the page
      this.#change((scale) => scale.zoom(this.#at(event).time, event.deltaY > 0 ? ZOOM : 1 / ZOOM));
    } else if (event.deltaX && !this.#view.scale.isWhole) {
      event.preventDefault();
      this.#change((scale) => scale.move(event.deltaX / this.#canvas.clientWidth));
    }
  }

  /** @param {PointerEvent} event */
  #press(event) {
    if (event.button !== 0) return;
    this.#drag = { x: event.offsetX, time: this.#at(event).time };
    this.#canvas.setPointerCapture(event.pointerId);
  }

  /** @param {PointerEvent} event */
  #move(event) {
    const { time, lane } = this.#at(event);
    const drag = this.#drag && Math.abs(event.offsetX - this.#drag.x) >= DRAGGED_FROM ? this.#drag : null;
    this.#view.pointed = time;
    this.#view.brush = drag && [drag.time, time];
    const text = drag ? asSeconds(Math.abs(time - drag.time)) : lane && this.#textAt(lane, time);
    this.#on.pointed(text, event.offsetX, event.offsetY);
    this.#on.changed();
  }

  /** @param {PointerEvent} event */
  #release(event) {
    const { lane } = this.#at(event);
    if (this.#view.brush) this.#view.scale.show(...this.#view.brush);
    else if (this.#drag && lane) this.#on.chose(lane.rank, event.shiftKey || event.ctrlKey || event.metaKey);
    this.#cancel();
  }

  /** Ends a drag, also where the browser takes the pointer to scroll the page. */
  #cancel() {
    this.#drag = null;
    this.#view.brush = null;
    this.#on.changed();
  }

  #leave() {
    this.#view.pointed = null;
    this.#on.pointed(null, 0, 0);
    this.#on.changed();
  }

  /**
   * @param {TimelineLane} lane
   * @param {number} time
   */
  #textAt(lane, time) {
    const { scale } = this.#view;
    const span = spanAt(lane, time, (NEAR * (scale.to - scale.from)) / Math.max(1, this.#canvas.clientWidth));
    if (!span) return `${lane.label} · idle`;
    const [start, end, state, name] = span;
    const title = KINDS.find((kind) => kind.name === state)?.title ?? state;
    return `${lane.label} · ${name ? `${name} (${title})` : title} · ${asSeconds(end - start)}, from ${asSeconds(start)}`;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const { scale } = this.#view;
    const middle = (scale.from + scale.to) / 2;
    /** @type {Record<string, () => void>} */
    const actions = {
      "+": () => scale.zoom(middle, 1 / ZOOM),
      "=": () => scale.zoom(middle, 1 / ZOOM), // the same key without shift
      "-": () => scale.zoom(middle, ZOOM),
      0: () => scale.showAll(),
      ArrowLeft: () => scale.move(-0.15),
      ArrowRight: () => scale.move(0.15),
      ArrowUp: () => this.#step(-1),
      ArrowDown: () => this.#step(1),
      Enter: () => this.#choose(event.shiftKey),
      " ": () => this.#choose(true),
    };
    const act = actions[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    act();
    this.#on.changed();
  }

  /** @param {boolean} isMore */
  #choose(isMore) {
    const lane = this.#view.lanes[this.#view.cursor];
    if (lane) this.#on.chose(lane.rank, isMore);
  }

  /** @param {number} by */
  #step(by) {
    const { lanes, laneHeight } = this.#view;
    if (!lanes.length) return;
    this.#view.cursor = Math.max(0, Math.min(lanes.length - 1, this.#view.cursor + by));
    const top = this.#view.cursor * laneHeight;
    const room = this.#scroller.clientHeight - AXIS_HEIGHT - laneHeight;
    this.#scroller.scrollTop = Math.max(top - room, Math.min(this.#scroller.scrollTop, top));
    this.#on.reached(lanes[this.#view.cursor]);
  }
}
