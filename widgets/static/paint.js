// @ts-check
/**
 * Draws the cells of ranks: by state, or by the value of a channel.
 *
 * Each look is drawn once, and its pixels are copied for each rank: that takes about 2 ms for thousands of cells. Canvas
 * commands for each cell would take about 50 ms without a GPU.
 */

import { heatColour, shareOf } from "./heat.js";
import { needsAttention, STATES, stateOf } from "./states.js";

/**
 * @import { ChannelSection } from "./protocol.d.ts"
 * @import { Store } from "./store.js"
 * @import { Theme } from "./theme.js"
 */

const SHADES = 64; // of the heat scale; finer ones cannot be told apart
const UNKNOWN = SHADES; // the shade of an unknown value
const HEALTHY = STATES.length; // stands for all states that need no mark
const TILED = 11; // device pixels of a cell, from which on a shape stands on a tile of its colour

export class Painter {
  #theme;
  /** @type {Map<number, Uint32Array>} */
  #looks = new Map(); // number of a look -> its pixels
  #side = 0; // device pixels
  #scratch = /** @type {CanvasRenderingContext2D} */ (
    document.createElement("canvas").getContext("2d", { willReadFrequently: true })
  );

  /** @param {Theme} theme */
  constructor(theme) {
    this.#theme = theme;
  }

  /**
   * Discards all looks, after a change of the theme or of the cells' size.
   *
   * @param {number} side device pixels
   */
  reset(side) {
    this.#side = side;
    this.#scratch.canvas.width = side;
    this.#scratch.canvas.height = side;
    this.#looks.clear();
  }

  /**
   * The pixels of a rank's cell: RGBA, a number each, line by line.
   *
   * @param {Store} store
   * @param {number} rank
   */
  pixelsOf(store, rank) {
    const { channel } = store;
    const state = store.states[rank];
    if (channel.name === "state") return this.#look(state, null);
    return this.#look(needsAttention(state) ? state : HEALTHY, shadeOf(store.values[rank], channel));
  }

  /**
   * @param {number} state
   * @param {number | null} shade
   */
  #look(state, shade) {
    const key = state + 16 * (shade === null ? 0 : shade + 1);
    let pixels = this.#looks.get(key);
    if (pixels === undefined) {
      pixels = this.#drawn(() => (shade === null ? this.#drawState(state) : this.#drawShade(state, shade)));
      this.#looks.set(key, pixels);
    }
    return pixels;
  }

  /** @param {() => void} draw */
  #drawn(draw) {
    const side = this.#side;
    this.#scratch.clearRect(0, 0, side, side);
    draw();
    return new Uint32Array(this.#scratch.getImageData(0, 0, side, side).data.buffer);
  }

  /** @param {number} state */
  #drawState(state) {
    const colour = this.#theme.colour(`state-${stateOf(state).name}`);
    const tiled = this.#side >= TILED;
    if (tiled) this.#tile(colour, state === 0 ? 0.1 : 0.17);
    this.#shape(state, colour, tiled ? 0.7 : 1.1);
  }

  /**
   * @param {number} state
   * @param {number} shade
   */
  #drawShade(state, shade) {
    if (shade === UNKNOWN) this.#tile(this.#theme.colour("quiet"), 0.16);
    else this.#tile(heatColour(shade / (SHADES - 1)), 1);
    if (state !== HEALTHY) this.#badge(state);
  }

  /**
   * Draws the shape of a state on a disc in the page's ground colour, so that it is visible on any colour of the scale.
   *
   * @param {number} state
   */
  #badge(state) {
    this.#scratch.fillStyle = this.#theme.colour("ground");
    this.#scratch.beginPath();
    this.#scratch.arc(this.#side / 2, this.#side / 2, this.#side * 0.4, 0, 2 * Math.PI);
    this.#scratch.fill();
    this.#shape(state, this.#theme.colour(`state-${stateOf(state).name}`), 0.56);
  }

  /**
   * @param {string} colour
   * @param {number} opacity
   */
  #tile(colour, opacity) {
    this.#scratch.globalAlpha = opacity;
    this.#scratch.fillStyle = colour;
    this.#scratch.beginPath();
    this.#scratch.roundRect(0, 0, this.#side, this.#side, Math.min(this.#side * 0.18, 14));
    this.#scratch.fill();
    this.#scratch.globalAlpha = 1;
  }

  /**
   * @param {number} state
   * @param {string} colour
   * @param {number} share of the cell's side
   */
  #shape(state, colour, share) {
    const scale = (this.#side * share) / 16;
    const margin = (this.#side * (1 - share)) / 2;
    this.#scratch.fillStyle = colour;
    this.#scratch.setTransform(scale, 0, 0, scale, margin, margin);
    this.#scratch.fill(new Path2D(stateOf(state).shape));
    this.#scratch.resetTransform();
  }
}

/**
 * The shade of a value on its channel's scale.
 *
 * @param {number} value
 * @param {ChannelSection} channel
 */
function shadeOf(value, { low, high }) {
  return Number.isNaN(value) ? UNKNOWN : Math.round(shareOf(value, low, high) * (SHADES - 1));
}
