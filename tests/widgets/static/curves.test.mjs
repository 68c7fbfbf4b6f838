// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";
import { asNumber, CurveBook, grouped, matching, smoothed, tableOf } from "../../../widgets/static/curvedata.js";
import { barsOf } from "../../../widgets/static/curvemedia.js";

/** @import { CurveLine, CurvesReply, MediumEntry } from "../../../widgets/static/protocol.d.ts" */

const PLAIN = { smoothing: 0, isLogX: false, isLogY: false };
/** @type {CurveLine[]} */
const DIVERGING = [{ rank: 3, kind: "diverging", text: "diverges: 9, median 1" }];

/**
 * @param {Partial<CurvesReply>} parts
 * @returns {CurvesReply}
 */
function reply(parts) {
  return { metrics: [], media_names: [], charts: [], curves: [], media: [], is_complete: true, seconds: 0, ...parts };
}

/**
 * A reply with one curve: x, mean, lowest, highest and lines.
 *
 * @param {string} run
 * @param {number[]} x
 * @param {number[][]} rows
 * @param {CurveLine[]} lines
 * @param {string[]} runs
 */
function take(
  book = new CurveBook(),
  run = "cell 1",
  x = [0, 1],
  rows = [
    [2, 1],
    [1, 0],
    [3, 2],
  ],
  lines = [],
  runs = [run],
) {
  const entry = { metric: "loss", run, version: x.length, points: x.length, ranks: 4, lines, more: 0 };
  const buffers = [new Float64Array(x), new Float32Array(rows.flat())].map(({ buffer }) => new DataView(buffer));
  const changed = book.take(reply({ metrics: ["loss"], charts: [{ metric: "loss", runs }], curves: [entry] }), buffers);
  return { book, changed };
}

test("a curve is drawn as its band, its lines and its mean", () => {
  const { book, changed } = take(
    undefined,
    "cell 1",
    [0, 1],
    [
      [2, 1],
      [1, 0],
      [3, 2],
      [NaN, 9],
    ],
    DIVERGING,
  );
  assert.deepEqual([...changed], ["loss"]);
  const { table, roles } = tableOf(book.curvesOf("loss"), PLAIN);
  assert.deepEqual(table, [
    [0, 1],
    [1, 0],
    [3, 2],
    [null, 9],
    [2, 1],
  ]);
  assert.deepEqual(
    roles.map(({ kind }) => kind),
    ["low", "high", "line", "mean"],
  );
  assert.equal(roles[2].line?.rank, 3);
});

test("earlier runs are means beside the present one, on one x", () => {
  const { book } = take(
    undefined,
    "cell 1",
    [0, 5],
    [
      [8, 7],
      [8, 7],
      [8, 7],
    ],
  );
  take(book, "cell 2", [0, 1], undefined, [], ["cell 1", "cell 2"]);
  const { table, roles } = tableOf(book.curvesOf("loss"), PLAIN);
  assert.deepEqual(table[0], [0, 1, 5]);
  assert.deepEqual(table[1], [8, undefined, 7]);
  assert.deepEqual(table[4], [2, 1, undefined]);
  assert.deepEqual(roles.map(({ kind, run }) => `${kind} ${run}`).slice(0, 2), ["earlier cell 1", "low cell 2"]);
});

test("runs that a chart no longer shows are discarded", () => {
  const { book } = take();
  take(book, "cell 2");
  assert.deepEqual(
    book.curvesOf("loss").map(({ entry }) => entry.run),
    ["cell 2"],
  );
  book.take(reply({ charts: [{ metric: "loss", runs: ["cell 1", "cell 2"] }] }), []);
  assert.deepEqual(book.have(["loss"]), [["loss", "cell 2", 2]]);
});

test("logarithmic axes leave out what has no place there", () => {
  const { book } = take();
  const { table } = tableOf(book.curvesOf("loss"), { ...PLAIN, isLogX: true, isLogY: true });
  assert.deepEqual(table, [[1], [null], [2], [1]]);
  const { book: none } = take(undefined, "cell 1", [0]);
  assert.deepEqual(tableOf(none.curvesOf("loss"), { ...PLAIN, isLogX: true }).table, [[], [], [], []]);
  assert.deepEqual(tableOf([], PLAIN), { table: [[]], roles: [] });
});

test("only the band stays as it is where curves are smooth", () => {
  const { book } = take(
    undefined,
    "cell 1",
    [0, 1, 2],
    [
      [4, 0, 0],
      [4, 0, 0],
      [4, 0, 0],
    ],
  );
  const { table, roles } = tableOf(book.curvesOf("loss"), { ...PLAIN, smoothing: 0.5 });
  assert.deepEqual(
    roles.map(({ kind }) => kind),
    ["low", "high", "raw", "mean"],
  );
  assert.deepEqual(table[1], [4, 0, 0]);
  assert.deepEqual(table[3], [4, 0, 0]);
  assert.deepEqual(
    table[4].map((value) => value?.toFixed(3)),
    ["4.000", "1.333", "0.571"],
  );
});

test("smoothing keeps a constant, its first value, and gaps", () => {
  assert.deepEqual([...smoothed([5, 5, 5], 0.9)].map(Math.round), [5, 5, 5]);
  assert.deepEqual([...smoothed([3, NaN, 3], 0.5)], [3, NaN, 3]);
  assert.deepEqual([...smoothed([1, 2], 0)], [1, 2]);
});

test("the kernel need not send again what a view has, but all after a change of settings", () => {
  const { book } = take();
  assert.deepEqual(book.have(["loss", "lr"]), [["loss", "cell 1", 2]]);
  assert.equal(book.take(reply({ metrics: ["loss"], charts: [{ metric: "loss", runs: ["cell 1"] }] }), []).size, 0);
  book.forget();
  assert.deepEqual(book.have(["loss"]), [["loss", "cell 1", -1]]);
  assert.equal(book.curvesOf("loss").length, 1);
});

test("the media of the latest run are shown, by rank", () => {
  const book = new CurveBook();
  /** @type {(run: string, rank: number, time: number) => MediumEntry} */
  const entry = (run, rank, time) => ({ name: "weights", run, rank, kind: "histogram", step: 3, time });
  const buffers = [[1, 2], [0, 1, 2], [3], [0, 1], [4], [0, 1]].map(
    (each) => new DataView(new Float64Array(each).buffer),
  );
  const media = [entry("cell 1", 9, 1), entry("cell 2", 4, 3), entry("cell 2", 0, 2)];
  book.take(reply({ media_names: ["weights"], media }), buffers);
  assert.deepEqual(
    book.mediaOf("weights").map(({ entry: { rank }, counts }) => [rank, ...counts]),
    [
      [0, 4],
      [4, 3],
    ],
  );
  assert.equal(book.haveMedia(["weights"]).length, 2);
  assert.equal(barsOf([1, 2], [0, 1, 2], 10, 100), "M0.0 100V50.0H5.0V100ZM5.0 100V0.0H10.0V100Z");
});

test("names are found by name, group or pattern, and groups stand together", () => {
  const names = ["loss", "train/loss", "lr", "train/acc", "val.loss"];
  assert.deepEqual(matching(names, []), names);
  assert.deepEqual(matching(names, ["train", "lr"]), ["train/loss", "lr", "train/acc"]);
  assert.deepEqual(matching(names, ["*loss"]), ["loss", "train/loss", "val.loss"]);
  assert.deepEqual(matching(names, ["val.los"]), []);
  assert.deepEqual(grouped(names), ["loss", "train/loss", "train/acc", "lr", "val.loss"]);
});

test("numbers are short", () => {
  const shown = [0, 0.3125, -2.5, 12340, 1.5e-7, 2e9, NaN, null].map(asNumber);
  assert.deepEqual(shown, ["0", "0.3125", "-2.5", "12,340", "1.50e-7", "2.00e9", "–", "–"]);
});
