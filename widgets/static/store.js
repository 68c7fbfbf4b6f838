// @ts-check
/** The state of the mesh as one view knows it: the sections and arrays of the states so far. No page, no drawing. */

import { parseRanks } from "./ranks.js";

/**
 * @import { Change } from "./context.d.ts"
 * @import {
 *   BarEntry, BufferName, CellSection, ChannelSection, EventEntry, HostEntry, HostProcesses, MeshSection, PauseEntry,
 *   Sections, SelectedSection, StacksSection, StateMessage, WorstEntry
 * } from "./protocol.d.ts"
 */

/** @type {(keyof Sections)[]} */
const SECTIONS = [
  "mesh",
  "channel",
  "counts",
  "cell",
  "worst",
  "hosts",
  "topology",
  "stacks",
  "pauses",
  "bars",
  "events",
  "selected",
  "curves",
];

/** @typedef {Uint8Array | Uint32Array | Float32Array | Float64Array} NumberArray */

/**
 * A buffer of a message as an array; copied, since its data may begin at any byte.
 *
 * @template {NumberArray} A
 * @param {new (buffer: ArrayBuffer) => A} Kind
 * @param {ArrayBufferView | ArrayBuffer} data
 */
export function arrayOf(Kind, data) {
  const bytes = ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : data;
  return new Kind(new Uint8Array(bytes).buffer);
}

/**
 * Whether two sections are equal. One function makes the JSON of both, so their keys have the same order.
 *
 * @param {unknown} one
 * @param {unknown} other
 */
function isSame(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

export class Store {
  /** @type {MeshSection | null} null until the first state */
  mesh = null;
  states = new Uint8Array(0); // a `State` for each rank
  values = new Float32Array(0); // of the channel, NaN where unknown
  /** @type {ChannelSection} */
  channel = { name: "state", unit: "", low: 0, high: 1 };
  /** @type {Record<string, number>} */
  counts = {};
  /** @type {CellSection | null} */
  cell = null;
  /** @type {WorstEntry[]} */
  worst = [];
  /** @type {HostEntry[]} */
  hosts = [];
  /** @type {HostProcesses[]} */
  topology = [];
  /** @type {StacksSection | null} */
  stacks = null;
  /** @type {PauseEntry[]} */
  pauses = [];
  /** @type {BarEntry[]} */
  bars = [];
  /** @type {EventEntry[]} */
  events = [];
  /** @type {SelectedSection} */
  selected = { sel: "", ranks: "", count: 0 };
  /** @type {Set<number>} */
  selectedRanks = new Set();
  curves = 0; // the version of all curves
  #cellReceivedAt = 0; // by performance.now()
  /** @type {Set<number>} */
  #dirty = new Set(); // ranks whose state or value has changed since `takeDirty`
  #allDirty = true;

  /** How many ranks there are. */
  get size() {
    return this.states.length;
  }

  /**
   * Applies a state and returns what changed. A section that a full state only repeats, because another view asked for it,
   * is no change: a person who reads in a panel keeps the place.
   *
   * @param {StateMessage} content
   * @param {DataView[]} buffers
   */
  apply(content, buffers) {
    /** @type {Set<Change>} */
    const changed = new Set();
    const isRepeated = content.full && isSame(content.mesh, this.mesh);
    for (const section of SECTIONS.filter((name) => name in content)) {
      if (isRepeated && isSame(content[section], this[section])) continue;
      Object.assign(this, { [section]: content[section] });
      changed.add(section);
    }
    if (changed.has("mesh")) this.#startAnew();
    if (changed.has("cell")) this.#cellReceivedAt = performance.now();
    if (changed.has("channel")) this.#allDirty = true;
    if (changed.has("selected")) this.selectedRanks = new Set(parseRanks(this.selected.ranks));
    this.#applyBuffers(content.buffers ?? [], buffers, changed);
    return changed;
  }

  /** Seconds since the cell began, also between two states. 0 if no cell runs. */
  cellSeconds() {
    return this.cell === null ? 0 : this.cell.seconds + (performance.now() - this.#cellReceivedAt) / 1000;
  }

  /** The ranks whose cells have to be drawn again since the last call: "all", or a set. */
  takeDirty() {
    const dirty = this.#allDirty ? "all" : this.#dirty;
    this.#dirty = new Set();
    this.#allDirty = false;
    return dirty;
  }

  #startAnew() {
    const size = this.mesh ? this.mesh.dims.reduce((product, [, length]) => product * length, 1) : 0;
    this.states = new Uint8Array(size);
    this.values = new Float32Array(size).fill(NaN);
    this.#allDirty = true;
  }

  /**
   * @param {BufferName[]} names
   * @param {DataView[]} buffers
   * @param {Set<Change>} changed
   */
  #applyBuffers(names, buffers, changed) {
    const named = new Map(names.map((name, index) => [name, buffers[index]]));
    const [states, values] = [named.get("states"), named.get("values")];
    if (states) this.#replace(this.states, arrayOf(Uint8Array, states));
    if (values) this.#replace(this.values, arrayOf(Float32Array, values));
    const [stateRanks, stateValues] = [named.get("state_ranks"), named.get("state_values")];
    const [valueRanks, valueValues] = [named.get("value_ranks"), named.get("value_values")];
    if (stateRanks && stateValues) this.#put(this.states, stateRanks, arrayOf(Uint8Array, stateValues));
    if (valueRanks && valueValues) this.#put(this.values, valueRanks, arrayOf(Float32Array, valueValues));
    if (states || stateRanks) changed.add("states");
    if (values || valueRanks) changed.add("values");
  }

  /**
   * @param {NumberArray} target
   * @param {NumberArray} array
   */
  #replace(target, array) {
    target.set(array.subarray(0, this.size));
    this.#allDirty = true;
  }

  /**
   * @param {NumberArray} target
   * @param {DataView} ranks
   * @param {NumberArray} values
   */
  #put(target, ranks, values) {
    for (const [index, rank] of arrayOf(Uint32Array, ranks).entries()) {
      if (rank >= this.size) continue; // the mesh has shrunk since
      target[rank] = values[index];
      this.#dirty.add(rank);
    }
  }
}
