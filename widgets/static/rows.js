/**
 * Elements that stand for things by a key, and stay while those do. What is made anew with each tick loses the focus, and a
 * click whose press and release fall on two of them.
 */

export class Rows {
  #parent;
  #make;
  #known = new Map(); // key -> {element, update}

  /** `make(item)` -> {element, update(item)}: what stands for an item in `parent`. */
  constructor(parent, make) {
    this.#parent = parent;
    this.#make = make;
  }

  /** Shows these items, in their order. */
  update(items, keyOf) {
    const shown = new Map(items.map((item) => [keyOf(item), item]));
    for (const [key, row] of this.#known) if (!shown.has(key)) this.#remove(key, row);
    let place = this.#parent.firstElementChild;
    for (const [key, item] of shown) {
      const row = this.#rowOf(key, item);
      row.update(item);
      if (row.element === place) place = place.nextElementSibling;
      else this.#parent.insertBefore(row.element, place);
    }
  }

  #rowOf(key, item) {
    if (!this.#known.has(key)) this.#known.set(key, this.#make(item));
    return this.#known.get(key);
  }

  #remove(key, row) {
    row.element.remove();
    this.#known.delete(key);
  }
}
