/** The states of a rank: their words, in the order of `State` in protocol.py. */

export const STATES = [
  { name: "idle", title: "idle" },
  { name: "running", title: "running" },
  { name: "in_collective", title: "in a collective" },
  { name: "paused", title: "paused" },
  { name: "starting", title: "starting" },
  { name: "error", title: "error" },
  { name: "stale", title: "no sign of life" },
  { name: "dead", title: "dead" },
];

export const DEAD = 7;
const WORRYING = new Set([3, 5, 6, 7]);

/** Whether a person should look at a rank in this state: these are marked whatever the grid shows. */
export function isWorrying(state) {
  return WORRYING.has(state);
}

/** The title of a state by its number. */
export function stateTitle(state) {
  return STATES[state]?.title ?? "unknown";
}
