/** The ranks that are selected. The kernel keeps them, for all views; what is chosen here shows at once. A selector that
    is wrong selects nothing. */

import { rankText, selectorOf } from "./ranks.js";

export class Selection {
  #store;
  #request;
  #changed;
  #complain;

  #recant = () => {}; // takes back what was complained of last

  /** `changed()` once it is another one; `complain(text)` with what is wrong with a selector, returns what takes it back. */
  constructor(store, request, { changed, complain }) {
    this.#store = store;
    this.#request = request;
    this.#changed = changed;
    this.#complain = complain;
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

  has(rank) {
    return this.#store.selectedRanks.has(rank);
  }

  /** Selects what a person typed: `0-3`, `failed`, `hosts=1`; empty for nothing. The kernel says which ranks that is. */
  async choose(typed) {
    this.#recant();
    try {
      await this.#request("select", { sel: typed.trim() });
    } catch (error) {
      this.#show("", []); // as the kernel does: what a button would act on is not what was meant
      this.#recant = this.#complain(error.message);
    }
  }

  /** Selects these ranks. */
  chooseRanks(ranks) {
    const ascending = [...new Set(ranks)].sort((one, other) => one - other);
    const sel = selectorOf(ascending, this.#store.size);
    this.#show(sel, ascending);
    return this.choose(sel);
  }

  #show(sel, ascending) {
    this.#store.selected = { sel, ranks: rankText(ascending), count: ascending.length };
    this.#store.selectedRanks = new Set(ascending);
    this.#changed();
  }

  clear() {
    return this.chooseRanks([]);
  }
}
