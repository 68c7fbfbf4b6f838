/** Selecting on the grid, with the mouse and with the keyboard. What is under the mouse or the cursor is told in words. */

import { element, newId, setAttribute, setText } from "./dom.js";
import { rankAt, ranksIn } from "./layout.js";
import { pointOf } from "./ranks.js";
import { stateTitle } from "./states.js";
import { asValue } from "./units.js";

const DRAG = 4; // pixels that the mouse has to move before it draws a rectangle

/** Makes the grid listen; `hover(rank or null)` for who shows more of a rank; `typeSelector()` moves to its field. */
export function makeSelectable(grid, context, { hover, typeSelector }) {
  new Pointing(grid, context, { hover, typeSelector });
}

class Pointing {
  #grid;
  #context;
  #hover;
  #typeSelector;
  #start = null; // {x, y} where the button was pressed
  #anchor = null; // rank at which a range begins; it may be of a mesh that was larger
  #spoken = element("div", { role: "gridcell", id: newId("cursor") });

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
    scroller.append(element("div", { role: "row", class: "meshbook-unseen" }, this.#spoken));
    surface.addEventListener("pointerdown", this.#press);
    surface.addEventListener("pointermove", this.#move);
    surface.addEventListener("pointerup", this.#release);
    surface.addEventListener("pointercancel", this.#cancel);
    surface.addEventListener("pointerleave", this.#leave);
    scroller.addEventListener("keydown", this.#key);
    scroller.addEventListener("focus", () => this.#focused());
    scroller.addEventListener("blur", () => grid.drawMarks());
  }

  #press = (event) => {
    if (event.button !== 0 || this.#grid.layout === null) return;
    this.#start = this.#grid.pointOf(event);
    this.#grid.surface.setPointerCapture(event.pointerId);
  };

  #move = (event) => {
    if (this.#grid.layout === null) return;
    const point = this.#grid.pointOf(event);
    if (this.#start !== null && (this.#grid.band !== null || distance(this.#start, point) > DRAG)) this.#stretch(point);
    else this.#point(rankAt(this.#grid.layout, point.x, point.y));
  };

  #release = (event) => {
    if (this.#start === null) return;
    const point = this.#grid.pointOf(event);
    const band = this.#grid.band;
    this.#cancel();
    if (band !== null) this.#choose(ranksIn(this.#grid.layout, band), event);
    else this.#click(rankAt(this.#grid.layout, point.x, point.y), event);
  };

  #cancel = () => {
    this.#start = this.#grid.band = null;
    this.#grid.drawMarks();
  };

  #leave = () => this.#point(null);

  #stretch(point) {
    this.#point(null);
    const [left, right] = [this.#start.x, point.x].sort((one, other) => one - other);
    const [top, bottom] = [this.#start.y, point.y].sort((one, other) => one - other);
    this.#grid.band = { left, top, right, bottom };
    this.#grid.drawMarks();
  }

  #point(rank) {
    if (rank === this.#grid.hovered) return;
    this.#grid.hovered = rank;
    this.#grid.drawMarks();
    this.#hover(rank);
  }

  #click(rank, event) {
    if (rank === null) {
      if (!adds(event)) this.#context.selection.clear();
      return;
    }
    if (event.shiftKey && this.#anchor !== null) this.#choose(this.#rangeTo(rank), event);
    else if (adds(event)) this.#toggle(rank);
    else this.#context.selection.chooseRanks([rank]);
    if (!event.shiftKey) this.#anchor = rank;
    this.#goTo(rank);
  }

  #choose(ranks, event) {
    const { selection } = this.#context;
    selection.chooseRanks(adds(event) ? [...selection.ranks, ...ranks] : ranks);
  }

  #toggle(rank) {
    const { selection } = this.#context;
    const others = selection.ranks.filter((each) => each !== rank);
    selection.chooseRanks(selection.has(rank) ? others : [...others, rank]);
  }

  #key = (event) => {
    const { size } = this.#context.store;
    if (size === 0 || event.altKey) return;
    const step = this.#stepOf(event.key);
    if (step !== null) this.#step(Math.min(size - 1, Math.max(0, (this.#grid.cursor ?? 0) + step)), event.shiftKey);
    else if (event.key === " ") this.#toggle((this.#anchor = this.#grid.cursor ?? 0));
    else if (event.key === "Enter") this.#openLogs();
    else if (event.key === "Escape") this.#context.selection.clear();
    else if (event.key === "/") this.#typeSelector();
    else if (event.key === "a" && (event.ctrlKey || event.metaKey))
      this.#context.selection.chooseRanks(range(0, size - 1));
    else return;
    event.preventDefault();
  };

  #stepOf(key) {
    const { stride } = this.#grid.layout;
    const { size } = this.#context.store;
    return { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -stride, ArrowDown: stride, Home: -size, End: size }[key] ?? null;
  }

  #step(rank, extends_) {
    this.#anchor ??= this.#grid.cursor ?? rank;
    if (extends_) this.#context.selection.chooseRanks(this.#rangeTo(rank));
    else this.#anchor = rank;
    this.#goTo(rank);
  }

  #rangeTo(rank) {
    return range(Math.min(this.#anchor, this.#context.store.size - 1), rank);
  }

  #openLogs() {
    const { selection, show } = this.#context;
    if (selection.size === 0) selection.chooseRanks([this.#grid.cursor ?? 0]);
    show("Logs");
  }

  #focused() {
    // Not for the mouse: what it pressed on must not scroll away under it.
    if (!this.#grid.scroller.matches(":focus-visible")) return;
    this.#goTo(this.#grid.cursor ?? this.#context.selection.ranks[0] ?? 0);
  }

  #goTo(rank) {
    if (this.#grid.layout === null) return;
    this.#grid.cursor = rank;
    this.#grid.reveal(rank);
    this.#grid.drawMarks();
    setText(this.#spoken, describeRank(rank, this.#context.store));
    setAttribute(this.#spoken, "aria-selected", String(this.#context.selection.has(rank)));
    this.#grid.scroller.setAttribute("aria-activedescendant", this.#spoken.id);
  }
}

/** A rank in words: `rank 3, hosts 0, gpus 3, node1, running, 1.2 GB`. */
function describeRank(rank, store) {
  const { mesh, channel } = store;
  const value = channel.name === "state" ? [] : [asValue(store.values[rank], channel.unit)];
  const parts = [
    `rank ${rank}`,
    pointOf(rank, mesh.dims),
    mesh.hosts[mesh.host_of[rank]],
    stateTitle(store.states[rank]),
  ];
  return [...parts, ...value].filter(Boolean).join(", ");
}

function adds(event) {
  return event.ctrlKey || event.metaKey || event.shiftKey;
}

function range(one, other) {
  const first = Math.min(one, other);
  return Array.from({ length: Math.abs(one - other) + 1 }, (_, index) => first + index);
}

function distance(one, other) {
  return Math.hypot(one.x - other.x, one.y - other.y);
}
