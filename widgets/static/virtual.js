// @ts-check
/**
 * A list of any length of which only the visible rows are in the page.
 *
 * Rows may have any height. The list estimates a height until it is measured, and keeps the first visible row at its place
 * when an estimate is wrong. The list stays at its end while `follows`; scrolling up ends that.
 */

import { element } from "./dom.js";

const OVERSCAN = 8; // rows beyond either edge, so that slow scrolling shows no gaps
const NEAR_TOP = 40; // pixels
const MOST_PASSES = 4; // a wrong estimate may bring other rows into view, whose estimates are wrong, too

/** @typedef {{height?: number}} Measured the list keeps the measured height in its items */

/** @template {Measured} T */
export class VirtualList {
  /** @type {T[]} */
  items = [];
  follows = true;
  #scroller;
  #makeRow;
  #guess;
  #onScroll;
  #tops = [0]; // of each item, and the end of the last
  /** @type {Map<T, HTMLElement>} the rows in the page */
  #rows = new Map();
  #first = 0;
  #frame = 0;
  #lastTop = 0;
  #width = 0;
  #space = element("div", { class: "meshbook-list-space" });
  #window = element("div", { class: "meshbook-list-window" });
  #observer = new ResizeObserver(() => this.#resized());

  /**
   * @param {HTMLElement} scroller
   * @param {object} options
   * @param {(item: T) => HTMLElement} options.makeRow
   * @param {(item: T) => number} options.guess the estimated height of an item in pixels
   * @param {() => void} options.onScroll called after each scroll by the user
   */
  constructor(scroller, { makeRow, guess, onScroll }) {
    this.#scroller = scroller;
    this.#makeRow = makeRow;
    this.#guess = guess;
    this.#onScroll = onScroll;
    this.#space.append(this.#window);
    scroller.append(this.#space);
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    this.#observer.observe(scroller);
  }

  /**
   * Replaces the items. Items that stay keep their rows, and the first visible one its place.
   *
   * @param {T[]} items
   */
  setItems(items) {
    const anchor = this.#anchor();
    this.items = items;
    this.#layOut();
    this.#holdAt(anchor);
    this.drawSoon();
  }

  /** Makes and measures all rows anew, after a change of their appearance. */
  remake() {
    const anchor = this.#anchor();
    for (const item of this.items) item.height = undefined;
    this.#layOut();
    this.#holdAt(anchor);
    this.repaint();
  }

  /** Makes the visible rows anew; their heights stay the same. */
  repaint() {
    this.#window.replaceChildren();
    this.#rows.clear();
    this.drawSoon();
  }

  /**
   * Brings an item to the middle, and stops following.
   *
   * @param {T} item
   */
  reveal(item) {
    const index = this.items.indexOf(item);
    if (index < 0) return;
    this.follows = false;
    this.#scrollTo(this.#tops[index] - this.#scroller.clientHeight / 2);
    this.drawSoon();
  }

  /** Goes to the end, and stays there. */
  follow() {
    this.follows = true;
    this.drawSoon();
  }

  get isAtTop() {
    return this.#scroller.scrollTop < NEAR_TOP;
  }

  get isAtEnd() {
    const { scrollTop, clientHeight, scrollHeight } = this.#scroller;
    return scrollTop + clientHeight >= scrollHeight - 2;
  }

  drawSoon() {
    if (!this.#frame) this.#frame = requestAnimationFrame(() => this.draw());
  }

  /** Puts the visible rows into the page, and takes the others out. */
  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (!this.#scroller.clientHeight) return; // hidden: it is drawn when it has a size again
    for (let pass = 0; pass < MOST_PASSES; pass++) {
      if (this.follows) this.#scrollTo(this.#tops[this.items.length]);
      this.#place();
      if (!this.#measure()) break;
    }
    if (this.follows) this.#scrollTo(this.#tops[this.items.length]);
  }

  dispose() {
    cancelAnimationFrame(this.#frame);
    this.#observer.disconnect();
  }

  #layOut() {
    const tops = new Array(this.items.length + 1);
    tops[0] = 0;
    for (const [index, item] of this.items.entries()) tops[index + 1] = tops[index] + this.#heightOf(item);
    this.#tops = tops;
    this.#space.style.height = `${tops[this.items.length]}px`;
  }

  /** @param {T} item */
  #heightOf(item) {
    return item.height ?? this.#guess(item);
  }

  #place() {
    const top = this.#scroller.scrollTop;
    const first = Math.max(0, this.#indexAt(top) - OVERSCAN);
    const last = Math.min(this.items.length, this.#indexAt(top + this.#scroller.clientHeight) + 1 + OVERSCAN);
    const wanted = new Set(this.items.slice(first, last));
    for (const [item, row] of this.#rows) {
      if (wanted.has(item)) continue;
      row.remove();
      this.#rows.delete(item);
    }
    this.#first = first;
    this.#window.style.transform = `translateY(${this.#tops[first]}px)`;
    this.#fill(wanted);
  }

  /** @param {Set<T>} wanted */
  #fill(wanted) {
    let next = this.#window.firstChild;
    for (const item of wanted) {
      const row = this.#rows.get(item) ?? this.#makeRow(item);
      this.#rows.set(item, row);
      if (row === next) next = next.nextSibling;
      else this.#window.insertBefore(row, next);
    }
  }

  /** Returns whether an estimate was wrong. It reads heights after all rows are in the page: each change costs a layout. */
  #measure() {
    const anchor = this.#anchor();
    let isWrong = false;
    for (const [item, row] of this.#rows) {
      const height = row.offsetHeight;
      if (height === this.#heightOf(item)) continue;
      item.height = height;
      isWrong = true;
    }
    if (!isWrong) return false;
    this.#layOut();
    this.#holdAt(anchor);
    this.#window.style.transform = `translateY(${this.#tops[this.#first]}px)`;
    return true;
  }

  /** @param {number} offset */
  #indexAt(offset) {
    let [low, high] = [0, this.items.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#tops[middle + 1] <= offset) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The first visible item, and how many pixels its top is above the edge. */
  #anchor() {
    const top = this.#scroller.scrollTop;
    const index = this.#indexAt(top);
    return { item: this.items[index], index, above: top - this.#tops[index] };
  }

  /** @param {{item: T | undefined, index: number, above: number}} anchor */
  #holdAt({ item, index, above }) {
    if (this.follows || item === undefined) return;
    const now = this.items[index] === item ? index : this.items.indexOf(item);
    if (now >= 0) this.#scrollTo(this.#tops[now] + above);
  }

  /** @param {number} top */
  #scrollTo(top) {
    const most = this.#space.offsetHeight - this.#scroller.clientHeight;
    const wanted = Math.max(0, Math.min(Math.round(top), most));
    if (Math.abs(wanted - this.#scroller.scrollTop) >= 1) this.#scroller.scrollTop = wanted;
    this.#lastTop = this.#scroller.scrollTop;
  }

  #scrolled() {
    const { scrollTop } = this.#scroller;
    if (Math.abs(scrollTop - this.#lastTop) < 1) return; // by `#scrollTo`, or sideways
    if (scrollTop < this.#lastTop) this.follows = false;
    this.#lastTop = scrollTop;
    this.drawSoon();
    this.#onScroll();
  }

  #resized() {
    const width = this.#scroller.clientWidth;
    if (width && width !== this.#width) {
      this.#width = width;
      this.remake();
    } else this.drawSoon();
  }
}
