/** What is known of the rank under the mouse, with its last minutes as a curve. */

import { channelTitle, curveFor } from "./channels.js";
import { element } from "./dom.js";
import { pointOf } from "./ranks.js";
import { makeSpark } from "./spark.js";
import { STATES, stateIcon, stateTitle } from "./states.js";
import { arrayOf } from "./store.js";
import { asValue } from "./units.js";

const DWELL = 120; // milliseconds that the mouse has to rest before the kernel is asked

export class Tooltip {
  #context;
  #grid;
  #timer = null;
  #rank = null;
  #curve = element("div", { class: "meshbook-tip-curve" });

  constructor(context, grid) {
    this.#context = context;
    this.#grid = grid;
    this.element = element("div", { class: "meshbook-tip", role: "tooltip", hidden: true });
  }

  /** Shows a rank, or nothing. */
  show(rank) {
    clearTimeout(this.#timer);
    this.#rank = rank;
    this.element.hidden = rank === null;
    if (rank === null) return;
    this.#curve.replaceChildren();
    this.update();
    this.#timer = setTimeout(() => this.#fetch(rank), DWELL);
  }

  /** Writes what is known now. */
  update() {
    const { store } = this.#context;
    if (this.#rank === null) return;
    if (this.#rank >= store.size) return this.show(null);
    this.element.replaceChildren(...this.#lines(this.#rank, store), this.#curve);
    this.#place();
  }

  dispose() {
    clearTimeout(this.#timer);
  }

  #lines(rank, { mesh, states, values, channel }) {
    const state = STATES[states[rank]] ?? STATES[0];
    const where = [pointOf(rank, mesh.dims), mesh.hosts[mesh.host_of[rank]]].filter(Boolean).join(" · ");
    const value =
      channel.name === "state"
        ? []
        : [
            element(
              "div",
              {},
              `${channelTitle(channel.name)}: `,
              element("b", {}, asValue(values[rank], channel.unit)),
            ),
          ];
    return [
      element(
        "div",
        { class: "meshbook-tip-title" },
        element("b", {}, `rank ${rank}`),
        stateIcon(state),
        stateTitle(states[rank]),
      ),
      element("div", { class: "meshbook-quiet" }, where),
      ...value,
    ];
  }

  async #fetch(rank) {
    const { metric, unit, title } = curveFor(this.#context.store.channel.name);
    try {
      const { buffers } = await this.#context.request("history", { ranks: [rank], metrics: [metric] });
      if (this.#rank === rank && buffers.length) this.#draw([...arrayOf(Float32Array, buffers[0])], unit, title);
    } catch {
      // The curve is an extra: what is known of the rank stands there without it.
    }
  }

  #draw(values, unit, title) {
    const newest = values.findLast((value) => !Number.isNaN(value));
    if (newest === undefined) return;
    const text = element("span", { class: "meshbook-quiet" }, `${title} ${asValue(newest, unit)}`);
    this.#curve.replaceChildren(makeSpark(values, { width: 150, height: 26 }), text);
    this.#place();
  }

  /** Below the cell, or above it where there is no room; within the dashboard. */
  #place() {
    const frame = this.element.offsetParent?.getBoundingClientRect();
    if (!frame) return;
    const cell = this.#grid.boxOf(this.#rank);
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = Math.min(Math.max(4, cell.left - frame.left), frame.width - width - 4);
    const below = cell.bottom - frame.top + 6;
    const top = cell.bottom + 6 + height < window.innerHeight ? below : cell.top - frame.top - height - 6;
    this.element.style.transform = `translate(${Math.round(left)}px, ${Math.round(top)}px)`;
  }
}
