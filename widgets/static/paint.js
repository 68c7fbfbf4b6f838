/**
 * Draws cells of ranks: by state, or by the value of a channel.
 *
 * Each look is drawn once, and its pixels are copied for each rank: thousands of cells take a millisecond or two so, and
 * with the drawing commands of a canvas fifty, where there is no GPU.
 */

import { heatColour, shareOf } from "./heat.js";
import { STATES, isWorrying } from "./states.js";

const SHADES = 64; // of the heat scale; finer ones nobody can tell apart
const UNKNOWN = SHADES; // the shade of a value that is not known
const WELL = STATES.length; // stands for all states that need no mark
const TILED = 11; // device pixels of a cell, from which on a shape stands on a tile of its colour

export class Painter {
  #theme;
  #looks = new Map(); // number of a look -> its pixels
  #side = 0; // device pixels
  #scratch = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

  constructor(theme) {
    this.#theme = theme;
  }

  /** Forgets all looks: the cells have another size (in device pixels), or the theme is another one. */
  reset(side) {
    this.#side = side;
    this.#scratch.canvas.width = this.#scratch.canvas.height = side;
    this.#looks.clear();
  }

  /** The pixels of a rank's cell as it is in a store: RGBA, a number each, line by line. */
  pixelsOf(store, rank) {
    const { channel } = store;
    const state = store.states[rank];
    if (channel.name === "state") return this.#look(state, null);
    return this.#look(isWorrying(state) ? state : WELL, shadeOf(store.values[rank], channel));
  }

  #look(state, shade) {
    const key = state + 16 * (shade === null ? 0 : shade + 1);
    let pixels = this.#looks.get(key);
    if (pixels === undefined) {
      pixels = this.#drawn(() => (shade === null ? this.#drawState(state) : this.#drawShade(state, shade)));
      this.#looks.set(key, pixels);
    }
    return pixels;
  }

  #drawn(draw) {
    const side = this.#side;
    this.#scratch.clearRect(0, 0, side, side);
    draw();
    return new Uint32Array(this.#scratch.getImageData(0, 0, side, side).data.buffer);
  }

  #drawState(state) {
    const colour = this.#theme.colour(`state-${STATES[state]?.name ?? "stale"}`);
    const tiled = this.#side >= TILED;
    if (tiled) this.#tile(colour, state === 0 ? 0.1 : 0.17);
    this.#shape(state, colour, tiled ? 0.7 : 1.1);
  }

  #drawShade(state, shade) {
    if (shade === UNKNOWN) this.#tile(this.#theme.colour("quiet"), 0.16);
    else this.#tile(heatColour(shade / (SHADES - 1)), 1);
    if (state !== WELL) this.#badge(state);
  }

  /** The shape of a state on a disc of the page's ground: it is seen on any colour of the scale. */
  #badge(state) {
    this.#scratch.fillStyle = this.#theme.colour("ground");
    this.#scratch.beginPath();
    this.#scratch.arc(this.#side / 2, this.#side / 2, this.#side * 0.4, 0, 2 * Math.PI);
    this.#scratch.fill();
    this.#shape(state, this.#theme.colour(`state-${STATES[state].name}`), 0.56);
  }

  #tile(colour, opacity) {
    this.#scratch.globalAlpha = opacity;
    this.#scratch.fillStyle = colour;
    this.#scratch.beginPath();
    this.#scratch.roundRect(0, 0, this.#side, this.#side, Math.min(this.#side * 0.18, 14));
    this.#scratch.fill();
    this.#scratch.globalAlpha = 1;
  }

  #shape(state, colour, share) {
    const scale = (this.#side * share) / 16;
    const margin = (this.#side * (1 - share)) / 2;
    this.#scratch.fillStyle = colour;
    this.#scratch.setTransform(scale, 0, 0, scale, margin, margin);
    this.#scratch.fill(new Path2D((STATES[state] ?? STATES.find(({ name }) => name === "stale")).shape));
    this.#scratch.resetTransform();
  }
}

/** The shade of a value on its channel's scale. */
function shadeOf(value, { low, high }) {
  return Number.isNaN(value) ? UNKNOWN : Math.round(shareOf(value, low, high) * (SHADES - 1));
}
