// @ts-check
/**
 * The selected ranks. The kernel keeps them for all views, but a choice of ranks shows at once. A wrong selector selects
 * nothing.
 */

import { messageOf } from "./errors.js";
import { rankText, selectorOf } from "./ranks.js";

/**
 * @import { Request } from "./context.d.ts"
 * @import { Store } from "./store.js"
 */

export class Selection {
  #store;
  #request;
  #changed;

  /** What is wrong with the selector that was chosen last; empty if nothing is. */
  problem = "";

  /**
   * @param {Store} store
   * @param {Request} request
   * @param {() => void} changed called when other ranks are selected, or a selector was refused
   */
  constructor(store, request, changed) {
    this.#store = store;
    this.#request = request;
    this.#changed = changed;
  }

  /** How many ranks are selected. */
  get size() {
    return this.#store.selectedRanks.size;
  }

  /** The selected ranks, ascending. */
  get ranks() {
    return [...this.#store.selectedRanks].sort((one, other) => one - other);
  }

  /** The selection as `%%mesh` takes it: what was typed, or `0:4,7`; empty if nothing is selected. */
  get sel() {
    return this.#store.selected.sel;
  }

  /** The selected ranks for people: `0-3,7`. */
  get text() {
    return rankText(this.ranks);
  }

  /** @param {number} rank */
  has(rank) {
    return this.#store.selectedRanks.has(rank);
  }

  /**
   * Selects by a selector: `0-3`, `failed`, `hosts=1`; empty for nothing. The kernel resolves it.
   *
   * @param {string} typed
   */
  async choose(typed) {
    this.problem = "";
    this.#changed();
    try {
      await this.#request("select", { sel: typed.trim() });
    } catch (error) {
      this.problem = messageOf(error);
      this.#show("", []); // as the kernel does: a button must not act on ranks that were not meant
    }
  }

  /**
   * Selects these ranks.
   *
   * @param {number[]} ranks
   */
  chooseRanks(ranks) {
    const ascending = [...new Set(ranks)].sort((one, other) => one - other);
    const sel = selectorOf(ascending, this.#store.size);
    this.#show(sel, ascending);
    return this.choose(sel);
  }

  clear() {
    return this.chooseRanks([]);
  }

  /**
   * Adds a rank to the selection, or removes it.
   *
   * @param {number} rank
   */
  toggle(rank) {
    const others = this.ranks.filter((each) => each !== rank);
    return this.chooseRanks(this.has(rank) ? others : [...others, rank]);
  }

  /**
   * @param {string} sel
   * @param {number[]} ascending
   */
  #show(sel, ascending) {
    this.#store.selected = { sel, ranks: rankText(ascending), count: ascending.length };
    this.#store.selectedRanks = new Set(ascending);
    this.#changed();
  }
}
