// @ts-check
/** The first lines: the mesh, how many ranks are in which state, and the cell that runs. */

import { element, setAttribute, setText } from "./dom.js";
import { Rows } from "./rows.js";
import { countsByState, ranksInState, stateIcon } from "./states.js";
import { asClock, asCount, asCounted } from "./units.js";

/**
 * @import { Changed, Context } from "./context.d.ts"
 * @import { CellSection, MeshSection } from "./protocol.d.ts"
 * @import { Store } from "./store.js"
 */

/** @typedef {ReturnType<typeof countsByState>[number]} StateCount */

/** @param {Context} context */
export function makeHeader(context) {
  const { store } = context;
  const name = element("h3", { class: "meshbook-name" });
  const shape = element("span", { class: "meshbook-quiet" });
  const chips = element("div", { class: "meshbook-chips", role: "group", "aria-label": "Ranks by state" });
  const rows = new Rows(chips, (/** @type {StateCount} */ state) => makeChip(state, context));
  const cell = makeCell(store);
  return {
    element: element(
      "header",
      { class: "meshbook-header" },
      element("div", { class: "meshbook-title" }, name, shape),
      chips,
    ),
    cell: cell.element,
    /** @param {Changed} changed */
    update(changed) {
      if (changed.has("mesh") && store.mesh) {
        setText(name, store.mesh.name);
        setText(shape, shapeText(store.mesh, store.size));
      }
      if (changed.has("counts")) rows.update(countsByState(store.counts), (state) => state.name);
      if (changed.has("cell")) cell.update();
    },
    dispose: () => cell.dispose(),
  };
}

/**
 * @param {MeshSection} mesh
 * @param {number} size
 */
function shapeText({ dims }, size) {
  const shape = dims.map(([dim, length]) => `${dim} ${asCount(length)}`).join(" × ");
  return dims.length > 1 ? `${shape} · ${asCounted(size, "rank")}` : shape;
}

/**
 * @param {StateCount} state
 * @param {Context} context
 */
function makeChip(state, { store, selection }) {
  const select = { click: () => void selection.chooseRanks(ranksInState(store.states, state.number)) };
  const count = element("b");
  const chip = element(
    "button",
    { type: "button", class: "meshbook-chip", dataset: { state: state.name }, on: select },
    stateIcon(state),
    count,
    state.title,
  );
  return {
    element: chip,
    /** @param {StateCount} now */
    update(now) {
      setText(count, asCount(now.count));
      setAttribute(chip, "title", `Select the ${now.count === 1 ? "rank that is" : "ranks that are"} ${now.title}`);
    },
  };
}

/** @param {Store} store */
function makeCell(store) {
  const mark = element("span", { class: "meshbook-pulse", "aria-hidden": "true" });
  const title = element("b");
  const clock = element("span", { class: "meshbook-clock" });
  const detail = element("span", { class: "meshbook-quiet" });
  const line = element("div", { class: "meshbook-cell" }, mark, title, clock, detail);
  const tick = () => setText(clock, store.cell === null ? "" : asClock(store.cellSeconds()));
  const timer = setInterval(tick, 250);
  return {
    element: line,
    dispose: () => clearInterval(timer),
    update() {
      setAttribute(line, "data-running", store.cell !== null);
      setText(title, store.cell?.title ?? "No cell is running");
      setText(detail, store.cell === null ? "" : detailText(store.cell));
      tick();
    },
  };
}

/** @param {CellSection} cell */
function detailText({ ranks, waits, jobs }) {
  const others = jobs ? `${asCounted(jobs, "job")} in the background` : "";
  return [ranks && `ranks ${ranks}`, waits, others].filter(Boolean).join(" · ");
}
