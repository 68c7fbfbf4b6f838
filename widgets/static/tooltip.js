// @ts-check
/** Details of the rank under the mouse, with a curve of its last minutes. */

import { channelTitle, curveFor } from "./channels.js";
import { element } from "./dom.js";
import { pointOf } from "./ranks.js";
import { makeSpark } from "./spark.js";
import { stateIcon, stateOf, stateTitle } from "./states.js";
import { arrayOf } from "./store.js";
import { asValue } from "./units.js";

/**
 * @import { Context } from "./context.d.ts"
 * @import { Grid } from "./grid.js"
 * @import { Store } from "./store.js"
 */

const DWELL = 120; // milliseconds that the mouse has to rest before the kernel is asked for the curve

export class Tooltip {
  #context;
  #grid;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  /** @type {number | null} */
  #rank = null;
  #curve = element("div", { class: "meshbook-tip-curve" });

  /**
   * @param {Context} context
   * @param {Grid} grid
   */
  constructor(context, grid) {
    this.#context = context;
    this.#grid = grid;
    this.element = element("div", { class: "meshbook-tip", role: "tooltip", hidden: true });
  }

  /**
   * Shows a rank; null hides the tooltip.
   *
   * @param {number | null} rank
   */
  show(rank) {
    clearTimeout(this.#timer);
    this.#rank = rank;
    this.element.hidden = rank === null;
    if (rank === null) return;
    this.#curve.replaceChildren();
    this.update();
    this.#timer = setTimeout(() => void this.#fetch(rank), DWELL);
  }

  /** Shows the newest state of the rank. */
  update() {
    const { store } = this.#context;
    if (this.#rank === null) return;
    if (this.#rank >= store.size) return this.show(null);
    this.element.replaceChildren(...this.#lines(this.#rank, store), this.#curve);
    this.#place(this.#rank);
  }

  dispose() {
    clearTimeout(this.#timer);
  }

  /**
   * @param {number} rank
   * @param {Store} store
   */
  #lines(rank, { mesh, states, values, channel }) {
    const point = mesh && pointOf(rank, mesh.dims);
    const host = mesh?.hosts[mesh.host_of[rank]];
    const lines = [
      element(
        "div",
        { class: "meshbook-tip-title" },
        element("b", {}, `rank ${rank}`),
        stateIcon(stateOf(states[rank])),
        stateTitle(states[rank]),
      ),
      element("div", { class: "meshbook-quiet" }, [point, host].filter(Boolean).join(" · ")),
    ];
    if (channel.name !== "state") {
      const value = element("b", {}, asValue(values[rank], channel.unit));
      lines.push(element("div", {}, `${channelTitle(channel.name)}: `, value));
    }
    return lines;
  }

  /** @param {number} rank */
  async #fetch(rank) {
    const { metric, unit, title } = curveFor(this.#context.store.channel.name);
    try {
      const { buffers } = await this.#context.request("history", { ranks: [rank], metrics: [metric] });
      if (this.#rank === rank && buffers.length) this.#draw(rank, [...arrayOf(Float32Array, buffers[0])], unit, title);
    } catch {
      // The tooltip is complete without the curve.
    }
  }

  /**
   * @param {number} rank
   * @param {number[]} values
   * @param {string} unit
   * @param {string} title
   */
  #draw(rank, values, unit, title) {
    const newest = values.findLast((value) => !Number.isNaN(value));
    if (newest === undefined) return;
    const text = element("span", { class: "meshbook-quiet" }, `${title} ${asValue(newest, unit)}`);
    this.#curve.replaceChildren(makeSpark(values, { width: 150, height: 26 }), text);
    this.#place(rank);
  }

  /**
   * Places the tooltip below the cell, or above it if there is no room; within the dashboard.
   *
   * @param {number} rank
   */
  #place(rank) {
    const frame = this.element.offsetParent?.getBoundingClientRect();
    const cell = this.#grid.boxOf(rank);
    if (!frame || !cell) return;
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = Math.min(Math.max(4, cell.left - frame.left), frame.width - width - 4);
    const below = cell.bottom - frame.top + 6;
    const top = cell.bottom + 6 + height < window.innerHeight ? below : cell.top - frame.top - height - 6;
    this.element.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }
}
