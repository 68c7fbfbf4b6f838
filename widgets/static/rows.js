// @ts-check
/**
 * Elements that show items by a key, and stay while the items do. An element that is made anew with each tick would lose
 * the focus, and a click whose press and release fall on two elements.
 */

/**
 * @template T
 * @typedef {{element: Element, update(item: T): void}} Row
 */

/** @template T */
export class Rows {
  #parent;
  #make;
  /** @type {Map<string | number, Row<T>>} */
  #known = new Map();

  /**
   * @param {Element} parent
   * @param {(item: T) => Row<T>} make
   */
  constructor(parent, make) {
    this.#parent = parent;
    this.#make = make;
  }

  /**
   * Shows these items, in their order.
   *
   * @param {T[]} items
   * @param {(item: T) => string | number} keyOf
   */
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

  /**
   * @param {string | number} key
   * @param {T} item
   */
  #rowOf(key, item) {
    const row = this.#known.get(key) ?? this.#make(item);
    this.#known.set(key, row);
    return row;
  }

  /**
   * @param {string | number} key
   * @param {Row<T>} row
   */
  #remove(key, row) {
    row.element.remove();
    this.#known.delete(key);
  }
}
