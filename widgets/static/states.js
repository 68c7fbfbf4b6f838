/** The states of a rank, in the order of `State` in protocol.py: words, and shapes, so that no colour is needed to tell them. */

/** `shape`: the path of an SVG in a square of 16. The colour is `--meshbook-state-<name>` of the style sheet. */
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
    title: "no sign of life",
    shape: "M8 1.8a6.2 6.2 0 1 0 0 12.4a6.2 6.2 0 1 0 0-12.4zM8 4.6a3.4 3.4 0 1 1 0 6.8a3.4 3.4 0 1 1 0-6.8z",
  },
  {
    name: "dead",
    title: "dead",
    shape: "M2.4 4.6L4.6 2.4L8 5.8L11.4 2.4L13.6 4.6L10.2 8L13.6 11.4L11.4 13.6L8 10.2L4.6 13.6L2.4 11.4L5.8 8z",
  },
];

const WORRYING = new Set([3, 5, 6, 7, 8]);

/** Whether a person should look at a rank in this state: it is marked whatever the grid shows. */
export function isWorrying(state) {
  return WORRYING.has(state);
}

/** The title of a state by its number. */
export function stateTitle(state) {
  return STATES[state]?.title ?? "unknown";
}

/** How many ranks are in each state: [{number, name, title, shape, count}], those that are none left out. */
export function countsByState(counts) {
  return STATES.map((state, number) => ({ ...state, number, count: counts[state.name] ?? 0 })).filter(
    ({ count }) => count > 0,
  );
}

/** The shape of a state as a picture in the text, in its colour. */
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
