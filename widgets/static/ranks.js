// @ts-check
/** Sets of ranks as text: `0-3,7` for people, `0:4,7` for `%%mesh`. Pure. */

/** @import { Dim } from "./protocol.d.ts" */

/**
 * Runs [first, last] of ascending, distinct ranks.
 *
 * @param {number[]} ranks
 */
function runsOf(ranks) {
  /** @type {[number, number][]} */
  const runs = [];
  for (const rank of ranks) {
    const run = runs.at(-1);
    if (run && run[1] === rank - 1) run[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs;
}

/**
 * Ascending ranks for people: `0-3,7`.
 *
 * @param {number[]} ranks
 */
export function rankText(ranks) {
  return runsOf(ranks)
    .map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`))
    .join(",");
}

/**
 * Ascending ranks as a selector of `%%mesh`: `0:4,7`, or `all` for all ranks.
 *
 * @param {number[]} ranks
 * @param {number} size how many ranks the mesh has
 */
export function selectorOf(ranks, size) {
  if (size > 0 && ranks.length === size) return "all";
  return runsOf(ranks)
    .map(([first, last]) => (first === last ? `${first}` : `${first}:${last + 1}`))
    .join(",");
}

/**
 * The ranks of a text from the kernel, `0-3,7`, in its order.
 *
 * @param {string} text
 */
export function parseRanks(text) {
  const ranks = [];
  for (const part of text.split(",").filter((piece) => piece.trim())) {
    const [first, last = first] = part.split("-").map(Number);
    for (let rank = first; rank <= last; rank += 1) ranks.push(rank);
  }
  return ranks;
}

/**
 * The position of a rank in the mesh: `hosts 1, gpus 3`.
 *
 * @param {number} rank
 * @param {Dim[]} dims the last one changes fastest
 */
export function pointOf(rank, dims) {
  const parts = [];
  let rest = rank;
  for (const [name, size] of [...dims].reverse()) {
    parts.unshift(`${name} ${rest % size}`);
    rest = Math.floor(rest / size);
  }
  return parts.join(", ");
}
