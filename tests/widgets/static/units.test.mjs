// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";
import { CHANNELS, extremeOf } from "../../../widgets/static/channels.js";
import { asBytes, asClock, asCount, asCounted, asSeconds, asValue } from "../../../widgets/static/units.js";

test("bytes have at most three digits", () => {
  assert.equal(asBytes(1_234_567_890), "1.2 GB");
  assert.equal(asBytes(999), "999 B");
  assert.equal(asBytes(999.6), "1.0 kB");
  assert.equal(asBytes(31e9), "31 GB");
  assert.equal(asBytes(5e18), "5000 PB");
});

test("times", () => {
  assert.equal(asClock(3725), "1:02:05");
  assert.equal(asClock(7), "0:07");
  assert.equal(asSeconds(0.32), "320 ms");
  assert.equal(asSeconds(0), "0 s");
  assert.equal(asSeconds(12.345), "12.3 s");
  assert.equal(asSeconds(125), "2:05");
  assert.equal(asSeconds(2e-6), "2 µs");
});

test("counts", () => {
  assert.equal(asCount(4096), "4,096");
  assert.equal(asCounted(1, "rank"), "1 rank");
  assert.equal(asCounted(4096, "rank"), "4,096 ranks");
});

test("values in the unit of a channel", () => {
  for (const unknown of [null, undefined, NaN]) assert.equal(asValue(unknown, "bytes"), "–");
  assert.equal(asValue(Infinity, "seconds"), "never");
  assert.equal(asValue(0.5, "share"), "50 %");
  assert.equal(asValue(-0.5, "seconds"), "−500 ms");
  assert.equal(asValue(1, "cores"), "1 core");
  assert.equal(asValue(3.25, "cores"), "3.3 cores");
  assert.equal(asValue(12, "messages"), "12 messages");
  assert.equal(asValue(12, ""), "12");
});

test("the worst values of a channel are the highest, but for the use of GPUs", () => {
  assert.deepEqual(
    CHANNELS.filter(({ name }) => extremeOf(name) === "Lowest").map(({ name }) => name),
    ["gpu"],
  );
});
