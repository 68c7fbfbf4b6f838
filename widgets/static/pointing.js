// @ts-check
/** Selection on the grid, with the mouse and the keyboard. Screen readers get the rank at the cursor in words. */

import { element, newId, setAttribute, setText } from "./dom.js";
import { rankAt, ranksIn } from "./layout.js";
import { pointOf } from "./ranks.js";
import { stateTitle } from "./states.js";
import { asValue } from "./units.js";

/**
 * @import { Context } from "./context.d.ts"
 * @import { Grid } from "./grid.js"
 * @import { Spot } from "./layout.js"
 * @import { Store } from "./store.js"
 */

/** @typedef {{ctrlKey: boolean, metaKey: boolean, shiftKey: boolean}} Modifiers */
/**
 * @typedef {object} PointingListeners
 * @property {(rank: number | null) => void} hover called with the rank under the mouse
 * @property {() => void} typeSelector moves the focus to the field for a selector
 */

const DRAG = 4; // pixels that the mouse has to move before it draws a rectangle

/**
 * Makes ranks selectable on the grid.
 *
 * @param {Grid} grid
 * @param {Context} context
 * @param {PointingListeners} listeners
 */
export function makeSelectable(grid, context, listeners) {
  new Pointing(grid, context, listeners);
}

class Pointing {
  #grid;
  #context;
  #hover;
  #typeSelector;
  /** @type {Spot | null} where the button was pressed */
  #start = null;
  /** @type {number | null} the rank at which a range begins; the mesh may have shrunk since */
  #anchor = null;
  #ariaCell = element("div", { role: "gridcell", id: newId("cursor") });

  /**
   * @param {Grid} grid
   * @param {Context} context
   * @param {PointingListeners} listeners
   */
  constructor(grid, context, { hover, typeSelector }) {
    this.#grid = grid;
    this.#context = context;
    this.#hover = hover;
    this.#typeSelector = typeSelector;
    const { scroller, surface } = grid;
    const label = "Ranks: arrows move, space selects, shift with arrows selects a range, enter opens the logs";
    for (const [name, value] of Object.entries({ role: "grid", "aria-label": label, "aria-multiselectable": "true" })) {
      scroller.setAttribute(name, value);
    }
    scroller.append(element("div", { role: "row", class: "meshbook-unseen" }, this.#ariaCell));
    surface.addEventListener("pointerdown", this.#press);
    surface.addEventListener("pointermove", this.#move);
    surface.addEventListener("pointerup", this.#release);
    surface.addEventListener("pointercancel", this.#cancel);
    surface.addEventListener("pointerleave", this.#leave);
    scroller.addEventListener("keydown", this.#key);
    scroller.addEventListener("focus", () => this.#focused());
    scroller.addEventListener("blur", () => grid.drawMarks());
  }

  /** @param {PointerEvent} event */
  #press = (event) => {
    if (event.button !== 0 || this.#grid.layout === null) return;
    this.#start = this.#grid.pointOf(event);
    this.#grid.surface.setPointerCapture(event.pointerId);
  };

  /** @param {PointerEvent} event */
  #move = (event) => {
    if (this.#grid.layout === null) return;
    const point = this.#grid.pointOf(event);
    if (this.#start !== null && (this.#grid.band !== null || distance(this.#start, point) > DRAG))
      this.#stretch(this.#start, point);
    else this.#point(rankAt(this.#grid.layout, point.x, point.y));
  };

  /** @param {PointerEvent} event */
  #release = (event) => {
    const { layout } = this.#grid;
    if (this.#start === null || layout === null) return;
    const point = this.#grid.pointOf(event);
    const band = this.#grid.band;
    this.#cancel();
    if (band !== null) this.#choose(ranksIn(layout, band), event);
    else this.#click(rankAt(layout, point.x, point.y), event);
  };

  #cancel = () => {
    this.#start = null;
    this.#grid.band = null;
    this.#grid.drawMarks();
  };

  #leave = () => this.#point(null);

  /**
   * @param {Spot} start
   * @param {Spot} end
   */
  #stretch(start, end) {
    this.#point(null);
    this.#grid.band = {
      left: Math.min(start.x, end.x),
      top: Math.min(start.y, end.y),
      right: Math.max(start.x, end.x),
      bottom: Math.max(start.y, end.y),
    };
    this.#grid.drawMarks();
  }

  /** @param {number | null} rank */
  #point(rank) {
    if (rank === this.#grid.hovered) return;
    this.#grid.hovered = rank;
    this.#grid.drawMarks();
    this.#hover(rank);
  }

  /**
   * @param {number | null} rank
   * @param {Modifiers} event
   */
  #click(rank, event) {
    const { selection } = this.#context;
    if (rank === null) {
      if (!adds(event)) void selection.clear();
      return;
    }
    if (event.shiftKey && this.#anchor !== null) this.#choose(this.#rangeFrom(this.#anchor, rank), event);
    else if (adds(event)) void selection.toggle(rank);
    else void selection.chooseRanks([rank]);
    if (!event.shiftKey) this.#anchor = rank;
    this.#goTo(rank);
  }

  /**
   * @param {number[]} ranks
   * @param {Modifiers} event
   */
  #choose(ranks, event) {
    const { selection } = this.#context;
    void selection.chooseRanks(adds(event) ? [...selection.ranks, ...ranks] : ranks);
  }

  /** @param {KeyboardEvent} event */
  #key = (event) => {
    const { selection, store } = this.#context;
    const { size } = store;
    if (size === 0 || event.altKey) return;
    const step = this.#stepOf(event.key);
    if (step !== null) this.#step(Math.min(size - 1, Math.max(0, (this.#grid.cursor ?? 0) + step)), event.shiftKey);
    else if (event.key === " ") this.#toggleAtCursor();
    else if (event.key === "Enter") this.#openLogs();
    else if (event.key === "Escape") void selection.clear();
    else if (event.key === "/") this.#typeSelector();
    else if (event.key === "a" && (event.ctrlKey || event.metaKey)) void selection.chooseRanks(range(0, size - 1));
    else return;
    event.preventDefault();
  };

  /** @param {string} key */
  #stepOf(key) {
    const stride = this.#grid.layout?.stride ?? 1;
    const { size } = this.#context.store;
    /** @type {Record<string, number>} */
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -stride, ArrowDown: stride, Home: -size, End: size };
    return steps[key] ?? null;
  }

  #toggleAtCursor() {
    this.#anchor = this.#grid.cursor ?? 0;
    void this.#context.selection.toggle(this.#anchor);
  }

  /**
   * @param {number} rank
   * @param {boolean} isRange
   */
  #step(rank, isRange) {
    this.#anchor ??= this.#grid.cursor ?? rank;
    if (isRange) void this.#context.selection.chooseRanks(this.#rangeFrom(this.#anchor, rank));
    else this.#anchor = rank;
    this.#goTo(rank);
  }

  /**
   * @param {number} anchor
   * @param {number} rank
   */
  #rangeFrom(anchor, rank) {
    return range(Math.min(anchor, this.#context.store.size - 1), rank);
  }

  #openLogs() {
    const { selection, show } = this.#context;
    if (selection.size === 0) void selection.chooseRanks([this.#grid.cursor ?? 0]);
    show("Logs");
  }

  #focused() {
    // Not for the mouse: the cell under it must not scroll away.
    if (!this.#grid.scroller.matches(":focus-visible")) return;
    this.#goTo(this.#grid.cursor ?? this.#context.selection.ranks[0] ?? 0);
  }

  /** @param {number} rank */
  #goTo(rank) {
    if (this.#grid.layout === null) return;
    this.#grid.cursor = rank;
    this.#grid.reveal(rank);
    this.#grid.drawMarks();
    setText(this.#ariaCell, describeRank(rank, this.#context.store));
    setAttribute(this.#ariaCell, "aria-selected", String(this.#context.selection.has(rank)));
    this.#grid.scroller.setAttribute("aria-activedescendant", this.#ariaCell.id);
  }
}

/**
 * A rank in words: `rank 3, hosts 0, gpus 3, node1, running, 1.2 GB`.
 *
 * @param {number} rank
 * @param {Store} store
 */
export function describeRank(rank, { mesh, channel, states, values }) {
  return [
    `rank ${rank}`,
    mesh && pointOf(rank, mesh.dims),
    mesh?.hosts[mesh.host_of[rank]],
    stateTitle(states[rank]),
    channel.name !== "state" && asValue(values[rank], channel.unit),
  ]
    .filter(Boolean)
    .join(", ");
}

/** @param {Modifiers} event */
function adds(event) {
  return event.ctrlKey || event.metaKey || event.shiftKey;
}

/**
 * @param {number} one
 * @param {number} other
 */
function range(one, other) {
  const first = Math.min(one, other);
  return Array.from({ length: Math.abs(one - other) + 1 }, (_, index) => first + index);
}

/**
 * @param {Spot} one
 * @param {Spot} other
 */
function distance(one, other) {
  return Math.hypot(one.x - other.x, one.y - other.y);
}
