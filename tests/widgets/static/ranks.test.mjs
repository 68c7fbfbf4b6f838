// @ts-check
import assert from "node:assert/strict";
import { test } from "node:test";
import { parseRanks, pointOf, rankText, selectorOf } from "../../../widgets/static/ranks.js";

test("ranks are text for people and for selectors", () => {
  assert.equal(rankText([0, 1, 2, 3, 7]), "0-3,7");
  assert.equal(rankText([]), "");
  assert.equal(selectorOf([0, 1, 2, 3, 7], 9), "0:4,7");
  assert.equal(selectorOf([0, 1], 2), "all");
  assert.equal(selectorOf([], 2), "");
  assert.equal(selectorOf([], 0), "");
});

test("the kernel's text is parsed in its order", () => {
  assert.deepEqual(parseRanks("0-2,5"), [0, 1, 2, 5]);
  assert.deepEqual(parseRanks("5,0-1"), [5, 0, 1]);
  assert.deepEqual(parseRanks(""), []);
});

test("a rank has a position in each dimension", () => {
  assert.equal(
    pointOf(13, [
      ["hosts", 2],
      ["gpus", 8],
    ]),
    "hosts 1, gpus 5",
  );
  assert.equal(pointOf(0, []), "");
});
