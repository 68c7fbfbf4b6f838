/** What a person does on the canvas of a timeline: pointing, zooming, choosing ranks; by mouse, finger and keyboard. */

import { AXIS_HEIGHT, LABEL_WIDTH } from "./timedraw.js";
import { KINDS, spanAt } from "./timescale.js";
import { asSeconds } from "./units.js";

const DRAGGED_FROM = 4; // pixels: less is a click
const NEAR = 3; // pixels within which a span counts as pointed at
const ZOOM = 1.25; // a notch of the wheel

export class TimePointing {
  #canvas;
  #scroller;
  #view;
  #on;
  #drag = null; // {x, time} where the button went down

  /**
   * `view` is what is drawn (timedraw.js): its `scale`, `cursor`, `pointed` and `brush` are changed here. `on.changed()`: it
   * is to be drawn again; `on.chose(rank, isMore)`; `on.pointed(text, x, y)` with what is there, or null; `on.reached(lane)`
   * by keys.
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

  #change(change) {
    change(this.#view.scale);
    this.#on.changed();
  }

  /** The time and the lane (or null) that the pointer is at. */
  #at(event) {
    const { lanes, laneHeight, scale } = this.#view;
    const width = this.#canvas.clientWidth - LABEL_WIDTH;
    const x = Math.max(0, Math.min(event.offsetX - LABEL_WIDTH, width));
    const index = Math.floor((event.offsetY - AXIS_HEIGHT + this.#scroller.scrollTop) / laneHeight);
    return { time: scale.timeAt(x, width), lane: event.offsetY < AXIS_HEIGHT ? null : (lanes[index] ?? null) };
  }

  // Without Ctrl the wheel scrolls lanes and page, as it does everywhere; trackpads send Ctrl where they are pinched.
  #wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault(); // the browser would zoom the page
      this.#change((scale) => scale.zoom(this.#at(event).time, event.deltaY > 0 ? ZOOM : 1 / ZOOM));
    } else if (event.deltaX && !this.#view.scale.isWhole) {
      event.preventDefault();
      this.#change((scale) => scale.move(event.deltaX / this.#canvas.clientWidth));
    }
  }

  #press(event) {
    if (event.button !== 0) return;
    this.#drag = { x: event.offsetX, time: this.#at(event).time };
    this.#canvas.setPointerCapture(event.pointerId);
  }

  #move(event) {
    const { time, lane } = this.#at(event);
    const isFar = this.#drag && Math.abs(event.offsetX - this.#drag.x) >= DRAGGED_FROM;
    this.#view.pointed = time;
    this.#view.brush = isFar ? [this.#drag.time, time] : null;
    const text = isFar ? asSeconds(Math.abs(time - this.#drag.time)) : lane && this.#textAt(lane, time);
    this.#on.pointed(text, event.offsetX, event.offsetY);
    this.#on.changed();
  }

  #release(event) {
    const { lane } = this.#at(event);
    if (this.#view.brush) this.#view.scale.show(...this.#view.brush);
    else if (this.#drag && lane) this.#on.chose(lane.rank, event.shiftKey || event.ctrlKey || event.metaKey);
    this.#cancel();
  }

  /** The pointer does nothing any more: a finger that scrolls the page, say. */
  #cancel() {
    this.#drag = this.#view.brush = null;
    this.#on.changed();
  }

  #leave() {
    this.#view.pointed = null;
    this.#on.pointed(null);
    this.#on.changed();
  }

  #textAt(lane, time) {
    const { scale } = this.#view;
    const span = spanAt(lane, time, (NEAR * (scale.to - scale.from)) / Math.max(1, this.#canvas.clientWidth));
    if (!span) return `${lane.label} · idle`;
    const [start, end, kind, name] = span;
    const title = KINDS.find((each) => each.name === kind)?.title ?? kind;
    return `${lane.label} · ${name ? `${name} (${title})` : title} · ${asSeconds(end - start)}, from ${asSeconds(start)}`;
  }

  #key(event) {
    const { scale } = this.#view;
    const middle = (scale.from + scale.to) / 2;
    const doing = {
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
    }[event.key];
    if (!doing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    doing();
    this.#on.changed();
  }

  #choose(isMore) {
    const lane = this.#view.lanes[this.#view.cursor];
    if (lane) this.#on.chose(lane.rank, isMore);
  }

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
