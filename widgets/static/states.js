// @ts-check
/** The states of a rank, in the order of `State` in protocol.py: words, and shapes that tell them apart without colour. */

/** @typedef {{name: string, title: string, shape: string}} StateKind */

/**
 * `shape` is an SVG path in a square of 16. The style sheet defines the colour as `--meshbook-state-<name>`.
 *
 * @type {StateKind[]}
 */
export const STATES = [
  { name: "idle", title: "idle", shape: "M8 5.2a2.8 2.8 0 1 0 0 5.6a2.8 2.8 0 1 0 0-5.6z" },
  {
    name: "running",
    title: "running",
    shape: "M4 2.5h8a1.5 1.5 0 0 1 1.5 1.5v8a1.5 1.5 0 0 1-1.5 1.5h-8a1.5 1.5 0 0 1-1.5-1.5v-8a1.5 1.5 0 0 1 1.5-1.5z",
  },
  { name: "in_collective", title: "in a collective", shape: "M8 2a6 6 0 1 0 0 12a6 6 0 1 0 0-12z" },
  { name: "paused", title: "paused", shape: "M3.5 2.5h3.2v11h-3.2zM9.3 2.5h3.2v11h-3.2z" },
  { name: "starting", title: "starting", shape: "M2.5 2.5h11v11h-11zM5 5v6h6v-6z" },
  { name: "error", title: "failed", shape: "M8 1.5L15 14H1z" },
  { name: "stuck", title: "stuck", shape: "M4 1.5h8v2.6L9.4 8L12 11.9v2.6H4v-2.6L6.6 8L4 4.1z" },
  {
    name: "stale",
    title: "no heartbeat",
    shape: "M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 1 0 0-12.4zM8 4.6a3.4 3.4 0 1 1 0 6.8a3.4 3.4 0 1 1 0-6.8z",
  },
  {
    name: "dead",
    title: "dead",
    shape: "M2.4 4.6L4.6 2.4L8 5.8L11.4 2.4L13.6 4.6L10.2 8L13.6 11.4L11.4 13.6L8 10.2L4.6 13.6L2.4 11.4L5.8 8z",
  },
];

const STALE = 7;
const NEED_ATTENTION = new Set([3, 5, 6, 7, 8]);

/**
 * Whether a person should look at a rank in this state: it is marked whatever the grid shows.
 *
 * @param {number} state
 */
export function needsAttention(state) {
  return NEED_ATTENTION.has(state);
}

/**
 * The kind of a state by its number. A number that is unknown, as of a newer kernel, is drawn as stale.
 *
 * @param {number} state
 */
export function stateOf(state) {
  return STATES[state] ?? STATES[STALE];
}

/**
 * The title of a state by its number.
 *
 * @param {number} state
 */
export function stateTitle(state) {
  return STATES[state]?.title ?? "unknown";
}

/**
 * The states that some rank is in, with how many ranks are in each.
 *
 * @param {Record<string, number>} counts by the name of the state
 */
export function countsByState(counts) {
  return STATES.map((state, number) => ({ ...state, number, count: counts[state.name] ?? 0 })).filter(
    ({ count }) => count > 0,
  );
}

/**
 * The numbers of the ranks in a state.
 *
 * @param {Uint8Array} states
 * @param {number} number of the state
 */
export function ranksInState(states, number) {
  return [...states.keys()].filter((rank) => states[rank] === number);
}

/**
 * The shape of a state as an inline image, in its colour.
 *
 * @param {StateKind} state
 */
export function stateIcon({ name, shape }) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("class", "meshbook-icon");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", shape);
  path.style.fill = `var(--meshbook-state-${name})`;
  svg.append(path);
  return svg;
}
