// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";
import { captionOf, layoutGrid, rankAt, ranksIn } from "../../../widgets/static/layout.js";

/** @import { Dim } from "../../../widgets/static/protocol.d.ts" */

/** @type {Dim[][]} */
const MESHES = [
  [],
  [["gpus", 1]],
  [["gpus", 4096]],
  [
    ["hosts", 2],
    ["gpus", 8],
  ],
  [
    ["hosts", 512],
    ["gpus", 8],
  ],
  [
    ["hosts", 3],
    ["gpus", 1000],
  ],
  [
    ["pods", 4],
    ["hosts", 3],
    ["gpus", 8],
  ],
  [
    ["a", 1],
    ["b", 1],
    ["c", 1],
    ["d", 5],
  ],
];

for (const dims of MESHES) {
  test(`each rank of ${JSON.stringify(dims)} has a place of its own within the grid`, () => {
    for (const width of [240, 700, 1500]) {
      const layout = layoutGrid(dims, width, 440);
      const { lefts, tops, cell } = layout;
      const ranks = [...lefts.keys()];
      assert.equal(
        ranks.length,
        dims.reduce((product, [, size]) => product * size, 1),
      );
      const row = dims.at(-1)?.[1] ?? 1;
      for (const rank of ranks) {
        assert.equal(rankAt(layout, lefts[rank] + cell / 2, tops[rank] + cell / 2), rank);
        assert.ok(lefts[rank] + cell <= layout.width + 0.5 && tops[rank] + cell <= layout.height + 0.5);
        const isBesideOrBelow = tops[rank] === tops[rank - 1] || lefts[rank] <= lefts[rank - 1];
        assert.ok(rank % row === 0 || isBesideOrBelow);
      }
      assert.ok(layout.width <= width);
      assert.ok(layout.height <= 440 || ranks.length > 512);
    }
  });
}

test("few rows are a matrix, and many rows share lines", () => {
  const [small, large, pods] = [
    layoutGrid(
      [
        ["hosts", 8],
        ["gpus", 8],
      ],
      900,
      280,
    ),
    layoutGrid(MESHES[4], 1046, 440),
    layoutGrid(MESHES[6], 900, 280),
  ];
  assert.equal(small.rows, 1);
  assert.equal(small.stride, 8);
  assert.ok(large.rows > 8 && large.height <= 440);
  assert.equal(large.stride, 8 * large.rows);
  const headings = pods.labels.filter(({ heading }) => heading).map(({ text }) => text);
  assert.deepEqual(headings, ["pods 0", "pods 1", "pods 2", "pods 3"]);
});

test("a point or a box finds the ranks under it", () => {
  const layout = layoutGrid(MESHES[3], 700, 280);
  const { lefts, tops, cell } = layout;
  assert.equal(rankAt(layout, 0, 0), null);
  const box = { left: lefts[1] + 1, top: tops[1] + 1, right: lefts[10] + 1, bottom: tops[10] + cell };
  assert.deepEqual(ranksIn(layout, box), [1, 2, 9, 10]);
  assert.deepEqual(ranksIn(layout, { left: -9, top: -9, right: -1, bottom: -1 }), []);
});

test("the caption says how to read the grid", () => {
  assert.equal(captionOf([], 1), "");
  assert.equal(captionOf([["gpus", 4096]], 1), "4,096 gpus");
  assert.equal(captionOf(MESHES[3], 1), "rows: 2 hosts, columns: 8 gpus");
  assert.equal(captionOf(MESHES[4], 11), "8 gpus per row, 11 hosts side by side");
  assert.equal(captionOf(MESHES[6], 1), "4 pods, rows: 3 hosts, columns: 8 gpus");
});
