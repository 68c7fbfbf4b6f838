// @ts-check
/** When buttons can be used, and how ranks are selected. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { reasonDisabled } from "../../../widgets/static/actions.js";
import { RequestError } from "../../../widgets/static/errors.js";
import { Selection } from "../../../widgets/static/selection.js";
import { Store } from "../../../widgets/static/store.js";

const MESH = { name: "m", dims: [], hosts: [], host_of: [], alive: true };
const CELL = { number: 1, title: "", seconds: 0, ranks: "", waits: "", jobs: 0, interruptible: true };

test("an action that cannot be used has a reason", () => {
  const quiet = { mesh: MESH, cell: null, counts: {} };
  const running = { ...quiet, cell: CELL };
  assert.equal(reasonDisabled("kill", { ...quiet, mesh: null }), "waiting for the kernel");
  assert.equal(reasonDisabled("kill", { ...quiet, mesh: { ...MESH, alive: false } }), "the mesh is down");
  assert.equal(reasonDisabled("interrupt", quiet), "no cell is running");
  assert.equal(
    reasonDisabled("interrupt", { ...running, cell: { ...CELL, interruptible: false } }),
    "this cell cannot be interrupted",
  );
  assert.equal(reasonDisabled("heal", quiet), "no rank is dead");
});

test("an action that can be used has none", () => {
  const quiet = { mesh: MESH, cell: null, counts: {} };
  assert.equal(reasonDisabled("kill", quiet), null);
  assert.equal(reasonDisabled("interrupt", { ...quiet, cell: CELL }), null);
  assert.equal(reasonDisabled("interrupt", { ...quiet, counts: { stuck: 1 } }), null);
  assert.equal(reasonDisabled("heal", { ...quiet, counts: { dead: 1 } }), null);
});

/** @param {() => Promise<any>} answer */
function selecting(answer) {
  const store = new Store();
  store.states = new Uint8Array(4);
  /** @type {unknown[]} */
  const events = [];
  /** @type {any} */
  const request = (/** @type {string} */ kind, /** @type {object} */ fields) => {
    events.push([kind, fields]);
    return answer();
  };
  const selection = new Selection(store, request, () => events.push("changed"));
  return { selection, store, events };
}

test("chosen ranks show at once, and the kernel gets a selector", async () => {
  const { selection, events } = selecting(async () => ({}));
  await selection.chooseRanks([3, 1, 0, 1]);
  assert.deepEqual([events[0], events.at(-1)], ["changed", ["select", { sel: "0:2,3" }]]);
  assert.deepEqual([selection.sel, selection.text, selection.size], ["0:2,3", "0-1,3", 3]);
  await selection.toggle(2);
  assert.equal(selection.sel, "all");
  await selection.toggle(0);
  assert.deepEqual([selection.has(0), selection.sel], [false, "1:4"]);
  await selection.clear();
  assert.equal(selection.size, 0);
});

test("a wrong selector selects nothing, and its problem is shown until the next one", async () => {
  const { selection, store, events } = selecting(async () => {
    throw new RequestError("'x' is no dimension");
  });
  store.selectedRanks = new Set([1]);
  await selection.choose(" x ");
  assert.deepEqual(events, ["changed", ["select", { sel: "x" }], "changed"]);
  assert.deepEqual([selection.size, selection.problem], [0, "'x' is no dimension"]);
  const next = selection.choose("y");
  assert.equal(selection.problem, "");
  await next;
});
