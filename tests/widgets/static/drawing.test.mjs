// @ts-check
/** What is drawn, without a page: the colour scale, curves, states, lanes. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { CHANNELS, channelTitle, curveFor } from "../../../widgets/static/channels.js";
import { heatColour, shareOf } from "../../../widgets/static/heat.js";
import { columnsOf } from "../../../widgets/static/hosts.js";
import { curveOf } from "../../../widgets/static/spark.js";
import { countsByState, needsAttention, ranksInState, stateOf, stateTitle } from "../../../widgets/static/states.js";
import { laneHeightOf } from "../../../widgets/static/timedraw.js";

test("the heat scale goes from viridis' first colour to its last", () => {
  assert.equal(heatColour(0), "rgb(68 1 84)");
  assert.equal(heatColour(0.5), "rgb(33 145 140)");
  assert.equal(heatColour(1), "rgb(253 231 37)");
  assert.deepEqual(
    [-1, 5, 20].map((value) => shareOf(value, 0, 10)),
    [0, 0.5, 1],
  );
  assert.equal(shareOf(3, 3, 3), 0.5);
});

test("a curve begins at the first known value and has gaps where values are unknown", () => {
  assert.equal(curveOf([NaN, null], 10, 10), "");
  assert.equal(curveOf([1, NaN, 2], 10, 10), "", "two points show no course");
  assert.equal(curveOf([0, 10, null, 5], 30, 14), "M0.0 12.0L10.0 2.0M30.0 7.0");
  const late = curveOf([...Array(20).fill(NaN), ...Array(12).fill(1)], 110, 14);
  assert.match(late, /^M0\.0 7\.0L10\.0/);
});

test("each state has a title, and unknown numbers are drawn as stale", () => {
  assert.deepEqual(
    countsByState({ dead: 2, idle: 1 }).map(({ name, number, count }) => [name, number, count]),
    [
      ["idle", 0, 1],
      ["dead", 8, 2],
    ],
  );
  assert.deepEqual(ranksInState(Uint8Array.of(0, 8, 0, 8), 8), [1, 3]);
  assert.equal(stateTitle(2), "in a collective");
  assert.equal(stateTitle(99), "unknown");
  assert.equal(stateOf(99).name, "stale");
  assert.deepEqual([0, 1, 2, 3, 4, 5, 6, 7, 8].filter(needsAttention), [3, 5, 6, 7, 8]);
});

test("each channel has a title and a curve", () => {
  assert.equal(CHANNELS[0].name, "state");
  assert.equal(channelTitle("gpu_memory"), "GPU memory");
  assert.equal(curveFor("skew").metric, "step");
});

test("columns without a value are hidden", () => {
  const host = { name: "a", ranks: 1, counts: {}, cpu: 2, memory: 1e9, gpu: null, gpu_memory: null };
  assert.deepEqual(columnsOf([host, { ...host, cpu: 3, gpu: 0.5 }]), [
    { shown: true, most: 3 },
    { shown: true, most: 1e9 },
    { shown: true, most: 1 },
    { shown: false, most: 0 },
  ]);
});

test("lanes shrink until they are 4 pixels high", () => {
  assert.equal(laneHeightOf(4, 340), 22);
  assert.equal(laneHeightOf(40, 340), 7);
  assert.equal(laneHeightOf(4096, 340), 4);
});
