/** What a view knows of its mesh: the sections of the last states, as protocol.py names them. No page, no drawing. */

import { parseRanks } from "./ranks.js";

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
];

/** A buffer of a message as an array; copied, since it may begin anywhere. */
export function arrayOf(Kind, buffer) {
  const bytes = new Uint8Array(buffer.buffer ?? buffer, buffer.byteOffset ?? 0, buffer.byteLength);
  return new Kind(bytes.slice().buffer);
}

/** Whether two sections say the same; they are JSON of one maker, so their keys are in one order. */
function isSame(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

export class Store {
  mesh = null; // until the first state
  states = new Uint8Array(0); // a `State` for each rank
  values = new Float32Array(0); // of the channel, NaN where not known
  channel = { name: "state", unit: "", low: 0, high: 1 };
  counts = {};
  cell = null;
  worst = [];
  hosts = [];
  topology = [];
  stacks = null;
  pauses = [];
  bars = [];
  events = [];
  selected = { sel: "", ranks: "", count: 0 };
  selectedRanks = new Set();
  cellHeardAt = 0; // when `cell` came, by performance.now()
  #dirty = new Set(); // ranks whose state or value has changed since `takeDirty`
  #allDirty = true;

  /** How many ranks there are. */
  get size() {
    return this.states.length;
  }

  /**
   * Takes a state in; the names of what has changed: sections, and "states" and "values" for the arrays. A full state, for
   * which another view may have asked, changes nothing that it only repeats: who reads in a panel stays where he is.
   */
  apply(content, buffers) {
    const changed = new Set();
    const isRepeated = content.full && isSame(content.mesh, this.mesh);
    for (const section of SECTIONS.filter((name) => name in content)) {
      if (isRepeated && isSame(content[section], this[section])) continue;
      this[section] = content[section];
      changed.add(section);
    }
    if (changed.has("mesh")) this.#beginAnew();
    if (changed.has("cell")) this.cellHeardAt = performance.now();
    if (changed.has("channel")) this.#allDirty = true;
    if (changed.has("selected")) this.selectedRanks = new Set(parseRanks(this.selected.ranks));
    this.#take(content.buffers ?? [], buffers, changed);
    return changed;
  }

  /** Seconds since the cell began; it counts on between two states. 0 if none runs. */
  cellSeconds() {
    return this.cell === null ? 0 : this.cell.seconds + (performance.now() - this.cellHeardAt) / 1000;
  }

  /** The ranks whose cells are to be drawn again: "all", or a set; asked for once. */
  takeDirty() {
    const dirty = this.#allDirty ? "all" : this.#dirty;
    this.#dirty = new Set();
    this.#allDirty = false;
    return dirty;
  }

  #beginAnew() {
    const size = this.mesh ? this.mesh.dims.reduce((product, [, length]) => product * length, 1) : 0;
    this.states = new Uint8Array(size);
    this.values = new Float32Array(size).fill(NaN);
    this.#allDirty = true;
  }

  #take(names, buffers, changed) {
    const named = Object.fromEntries(names.map((name, place) => [name, buffers[place]]));
    this.#fill("states", "state", Uint8Array, named, changed);
    this.#fill("values", "value", Float32Array, named, changed);
  }

  #fill(section, singular, Kind, named, changed) {
    if (section in named) {
      this[section].set(arrayOf(Kind, named[section]).subarray(0, this.size));
      this.#allDirty = true;
      changed.add(section);
    } else if (`${singular}_ranks` in named) {
      const values = arrayOf(Kind, named[`${singular}_values`]);
      arrayOf(Uint32Array, named[`${singular}_ranks`]).forEach((rank, place) =>
        this.#put(section, rank, values[place]),
      );
      changed.add(section);
    }
  }

  #put(section, rank, value) {
    if (rank >= this.size) return; // a mesh that has shrunk since
    this[section][rank] = value;
    this.#dirty.add(rank);
  }
}
