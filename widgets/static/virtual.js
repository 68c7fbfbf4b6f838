/**
 * A list of any length of which only the visible rows are in the page.
 *
 * Rows are as high as they come out: what is not measured yet is guessed, and the first visible row stays where it is
 * when a guess proves wrong. The list sticks to its end while `follows`; scrolling up ends that.
 */

import { element } from "./dom.js";

const OVERSCAN = 8; // rows beyond either edge, so that slow scrolling shows no gaps
const NEAR_TOP = 40; // pixels
const MOST_PASSES = 4; // guesses that were wrong may bring other rows into view, whose guesses are wrong

export class VirtualList {
  items = [];
  follows = true;
  #scroller;
  #makeRow;
  #guess;
  #onScroll;
  #tops = [0]; // of each item, and the end of the last
  #rows = new Map(); // item -> element, of those in the page
  #first = 0;
  #frame = 0;
  #lastTop = 0;
  #width = 0;
  #space = element("div", { class: "meshbook-list-space" });
  #window = element("div", { class: "meshbook-list-window" });
  #observer = new ResizeObserver(() => this.#resized());

  /**
   * Items are objects; the list keeps their measured `height` in them. `makeRow(item)` gives an item's element,
   * `guess(item)` its height in pixels as long as it is not known. `onScroll()` follows each scroll by the user.
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

  /** The items are these now. Those that were there before keep their rows, and the first visible one its place. */
  setItems(items) {
    const anchor = this.#anchor();
    this.items = items;
    this.#layOut();
    this.#holdAt(anchor);
    this.drawSoon();
  }

  /** All rows are made anew, as the way in which they are shown has changed. */
  remake() {
    const anchor = this.#anchor();
    for (const item of this.items) item.height = undefined;
    this.#layOut();
    this.#holdAt(anchor);
    this.repaint();
  }

  /** The visible rows are made anew; none becomes higher by it. */
  repaint() {
    this.#window.replaceChildren();
    this.#rows.clear();
    this.drawSoon();
  }

  /** Brings an item to the middle, and stops following. */
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
    this.items.forEach((item, index) => (tops[index + 1] = tops[index] + this.#heightOf(item)));
    this.#tops = tops;
    this.#space.style.height = `${tops[this.items.length]}px`;
  }

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

  #fill(wanted) {
    let next = this.#window.firstChild;
    for (const item of wanted) {
      let row = this.#rows.get(item);
      if (!row) this.#rows.set(item, (row = this.#makeRow(item)));
      if (row === next) next = next.nextSibling;
      else this.#window.insertBefore(row, next);
    }
  }

  // Whether a row is not as high as was thought. Nothing is read but once all rows are in the page.
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

  #indexAt(offset) {
    let [low, high] = [0, this.items.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#tops[middle + 1] <= offset) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The first visible item, and how far its top is above the edge.
  #anchor() {
    const top = this.#scroller.scrollTop;
    const index = this.#indexAt(top);
    return { item: this.items[index], index, above: top - this.#tops[index] };
  }

  #holdAt({ item, index, above }) {
    if (this.follows || item === undefined) return;
    const now = this.items[index] === item ? index : this.items.indexOf(item);
    if (now >= 0) this.#scrollTo(this.#tops[now] + above);
  }

  #scrollTo(top) {
    const most = this.#space.offsetHeight - this.#scroller.clientHeight;
    const wanted = Math.max(0, Math.min(Math.round(top), most));
    if (Math.abs(wanted - this.#scroller.scrollTop) >= 1) this.#scroller.scrollTop = wanted;
    this.#lastTop = this.#scroller.scrollTop;
  }

  #scrolled() {
    const { scrollTop } = this.#scroller;
    if (Math.abs(scrollTop - this.#lastTop) < 1) return; // by ourselves, or sideways
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
