/** Sets of ranks as text: `0-3,7` as people read them, `0:4,7` as `%%mesh` takes them. Pure. */

/** Runs [first, last] of ascending, distinct ranks. */
function runsOf(ranks) {
  const runs = [];
  for (const rank of ranks) {
    const run = runs.at(-1);
    if (run && run[1] === rank - 1) run[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs;
}

/** Ascending ranks for people: `0-3,7`. */
export function rankText(ranks) {
  return runsOf(ranks)
    .map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`))
    .join(",");
}

/** Ascending ranks as a selector of `%%mesh`: `0:4,7`; `all` if it is every one of `size`. */
export function selectorOf(ranks, size) {
  if (size > 0 && ranks.length === size) return "all";
  return runsOf(ranks)
    .map(([first, last]) => (first === last ? `${first}` : `${first}:${last + 1}`))
    .join(",");
}

/** The ranks of a text as the kernel writes it, `0-3,7`, in its order. */
export function parseRanks(text) {
  const ranks = [];
  for (const part of text.split(",").filter((piece) => piece.trim())) {
    const [first, last = first] = part.split("-").map(Number);
    for (let rank = first; rank <= last; rank += 1) ranks.push(rank);
  }
  return ranks;
}

/** Where a rank is in the mesh: `hosts 1, gpus 3`. `dims` is [[name, size], ...], the last one changing fastest. */
export function pointOf(rank, dims) {
  const parts = [];
  let rest = rank;
  for (const [name, size] of [...dims].reverse()) {
    parts.unshift(`${name} ${rest % size}`);
    rest = Math.floor(rest / size);
  }
  return parts.join(", ");
}
