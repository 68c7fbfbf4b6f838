// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  firstAfter,
  orderLanes,
  sharesOf,
  spanAt,
  TimeScale,
  ticksOf,
  tickText,
} from "../../../widgets/static/timescale.js";

/** @import { TimelineLane } from "../../../widgets/static/protocol.d.ts" */

/** @type {TimelineLane} */
const LATE = {
  label: "rank 0",
  rank: 0,
  spans: [
    [0, 1, "running", "step"],
    [1, 1.5, "waiting", "all_reduce"],
    [3, 4, "collective", "all_reduce"],
  ],
};
/** @type {TimelineLane} */
const BUSY = {
  label: "rank 1",
  rank: 1,
  spans: [
    [0, 2, "running", "step"],
    [2, 3, "transfer", "send"],
  ],
};

test("zooming keeps a time at its place, and moving stays within the cell", () => {
  const scale = new TimeScale(10);
  assert.ok(scale.isWhole);
  scale.zoom(4, 0.5);
  assert.deepEqual([scale.from, scale.to], [2, 7]);
  assert.equal(scale.placeOf(4, 100), 40);
  assert.equal(scale.timeAt(40, 100), 4);
  scale.move(-1);
  assert.deepEqual([scale.from, scale.to], [0, 5]);
  scale.move(9);
  assert.deepEqual([scale.from, scale.to], [5, 10]);
  scale.show(8, 7);
  assert.deepEqual([scale.from, scale.to], [7, 8]);
  scale.zoom(7.5, 100);
  assert.ok(scale.isWhole);
  scale.show(3, 3);
  assert.ok(scale.to > scale.from);
  scale.showAll();
  assert.ok(scale.isWhole);
});

test("ticks are round and their labels differ", () => {
  const scale = new TimeScale(2);
  const { ticks, step } = ticksOf(scale, 400);
  assert.deepEqual([step, ticks], [0.5, [0, 0.5, 1, 1.5, 2]]);
  assert.deepEqual(
    ticks.slice(1, 3).map((tick) => tickText(tick, step, scale.to)),
    ["0.5 s", "1.0 s"],
  );
  assert.equal(tickText(0.002, 0.001, 0.01), "2 ms");
  assert.equal(tickText(2e-6, 1e-6, 1e-5), "2 µs");
  assert.equal(tickText(120, 60, 600), "2:00");
});

test("lanes are ordered by rank or by work", () => {
  assert.deepEqual(
    orderLanes([BUSY, LATE], "rank").map(({ rank }) => rank),
    [0, 1],
  );
  assert.deepEqual(
    orderLanes([LATE, BUSY], "work").map(({ rank }) => rank),
    [1, 0],
  );
});

test("shares add up to the whole, with the rest idle", () => {
  const shares = sharesOf([LATE, BUSY], 4);
  assert.deepEqual(shares, { running: 0.375, collective: 0.125, waiting: 0.0625, transfer: 0.125, idle: 0.3125 });
  assert.equal(sharesOf([], 4).idle, 1);
});

test("a time finds the span under it, or one that is near", () => {
  assert.equal(spanAt(LATE, 0.5, 0)?.[3], "step");
  assert.equal(spanAt(LATE, 2, 0.1), null);
  assert.equal(spanAt(LATE, 1.55, 0.1)?.[2], "waiting");
  assert.equal(spanAt(LATE, 2.95, 0.1)?.[2], "collective");
  assert.equal(spanAt(LATE, 9, 0.1), null);
  assert.deepEqual(
    [0, 1, 2, 5].map((time) => firstAfter(LATE.spans, time)),
    [0, 1, 2, 3],
  );
});
