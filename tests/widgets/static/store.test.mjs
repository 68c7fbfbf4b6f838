// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";
import { describeRank } from "../../../widgets/static/pointing.js";
import { Store } from "../../../widgets/static/store.js";

/** @import { MeshSection, StateMessage } from "../../../widgets/static/protocol.d.ts" */

/** @type {MeshSection} */
const MESH = {
  name: "trainers",
  dims: [
    ["hosts", 2],
    ["gpus", 2],
  ],
  hosts: ["node1", "node2"],
  host_of: [0, 0, 1, 1],
  alive: true,
};

/**
 * @param {Partial<StateMessage>} sections
 * @returns {StateMessage}
 */
function state(sections) {
  return { kind: "state", seq: 1, full: false, ...sections };
}

/**
 * A view of an array that begins one byte into its buffer, as those of a message may.
 *
 * @param {Uint8Array | Uint32Array | Float32Array} array
 */
function viewOf(array) {
  const bytes = new Uint8Array(array.byteLength + 1);
  bytes.set(new Uint8Array(array.buffer), 1);
  return new DataView(bytes.buffer, 1);
}

function full() {
  const store = new Store();
  const message = state({ full: true, mesh: MESH, buffers: ["states", "values"], counts: { running: 4 } });
  const buffers = [viewOf(Uint8Array.of(1, 1, 1, 8)), viewOf(Float32Array.of(1.5, NaN, 3, 4))];
  return { store, message, buffers, changed: store.apply(message, buffers) };
}

test("a full state has all sections and arrays", () => {
  const { store, changed } = full();
  assert.deepEqual([...changed].sort(), ["counts", "mesh", "states", "values"]);
  assert.equal(store.size, 4);
  assert.deepEqual([...store.states], [1, 1, 1, 8]);
  assert.deepEqual([...store.values], [1.5, NaN, 3, 4]);
  assert.equal(store.takeDirty(), "all");
  assert.deepEqual(store.takeDirty(), new Set());
});

test("changes reach single ranks, and ranks beyond the mesh are ignored", () => {
  const { store } = full();
  store.takeDirty();
  const changes = state({ buffers: ["state_ranks", "state_values", "value_ranks", "value_values"] });
  const changed = store.apply(changes, [
    viewOf(Uint32Array.of(3, 9)),
    viewOf(Uint8Array.of(1, 1)),
    viewOf(Uint32Array.of(0)),
    viewOf(Float32Array.of(2.5)),
  ]);
  assert.deepEqual([...changed].sort(), ["states", "values"]);
  assert.deepEqual([...store.states], [1, 1, 1, 1]);
  assert.equal(store.values[0], 2.5);
  assert.deepEqual(store.takeDirty(), new Set([3, 0]));
});

test("a full state that repeats a section does not change it", () => {
  const { store, message, buffers } = full();
  const { mesh } = store;
  const changed = store.apply({ ...message, mesh: structuredClone(MESH), counts: { idle: 4 } }, buffers);
  assert.equal(store.mesh, mesh);
  assert.deepEqual([...changed].sort(), ["counts", "states", "values"]);
});

test("another mesh starts anew", () => {
  const { store } = full();
  const changed = store.apply(state({ full: true, mesh: { ...MESH, dims: [["gpus", 3]], host_of: [0, 0, 0] } }), []);
  assert.ok(changed.has("mesh"));
  assert.deepEqual([...store.states], [0, 0, 0]);
  assert.deepEqual([...store.values], [NaN, NaN, NaN]);
});

test("the seconds of a cell continue between states", (t) => {
  const { store } = full();
  assert.equal(store.cellSeconds(), 0);
  let now = 1000;
  t.mock.method(performance, "now", () => now);
  const cell = { number: 9, title: "cell 9", seconds: 3, ranks: "0-3", waits: "", jobs: 0, interruptible: true };
  store.apply(state({ cell }), []);
  now = 2500;
  assert.equal(store.cellSeconds(), 4.5);
});

test("a rank is described in words", () => {
  const { store } = full();
  assert.equal(describeRank(3, store), "rank 3, hosts 1, gpus 1, node2, dead");
  store.apply(state({ channel: { name: "memory", unit: "bytes", low: 0, high: 9 } }), []);
  assert.equal(describeRank(0, store), "rank 0, hosts 0, gpus 0, node1, running, 2 B");
  assert.equal(describeRank(0, new Store()), "rank 0, unknown");
});
