/** The first lines: which mesh it is, how many ranks are in which state, what runs and for how long. */

import { element, setAttribute, setText } from "./dom.js";
import { Rows } from "./rows.js";
import { countsByState, stateIcon } from "./states.js";
import { asClock, asCount, asCounted } from "./units.js";

export function makeHeader({ store, selection }) {
  const name = element("h3", { class: "meshbook-name" });
  const shape = element("span", { class: "meshbook-quiet" });
  const chips = element("div", { class: "meshbook-chips", role: "group", "aria-label": "Ranks by state" });
  const rows = new Rows(chips, (state) => makeChip(state, store, selection));
  const cell = makeCell(store);
  return {
    element: element(
      "header",
      { class: "meshbook-header" },
      element("div", { class: "meshbook-title" }, name, shape),
      chips,
    ),
    cell: cell.element,
    update(changed) {
      if (changed.has("mesh")) {
        setText(name, store.mesh.name);
        setText(shape, shapeText(store));
      }
      if (changed.has("counts")) rows.update(countsByState(store.counts), (state) => state.name);
      if (changed.has("cell")) cell.update();
    },
    dispose: () => cell.dispose(),
  };
}

function shapeText({ mesh, size }) {
  const shape = mesh.dims.map(([dim, length]) => `${dim} ${asCount(length)}`).join(" × ");
  return mesh.dims.length > 1 ? `${shape} · ${asCounted(size, "rank")}` : shape;
}

function makeChip(state, store, selection) {
  const select = { click: () => selection.chooseRanks(ranksInState(store.states, state.number)) };
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
    update(now) {
      setText(count, asCount(now.count));
      setAttribute(chip, "title", `Select the ${now.count === 1 ? "rank that is" : "ranks that are"} ${now.title}`);
    },
  };
}

function ranksInState(states, number) {
  return [...states.keys()].filter((rank) => states[rank] === number);
}

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
      setText(title, store.cell?.title ?? "No cell runs");
      setText(detail, store.cell === null ? "" : detailText(store.cell));
      tick();
    },
  };
}

function detailText({ ranks, waits, jobs }) {
  const others = jobs ? `${asCounted(jobs, "job")} in the background` : "";
  return [ranks && `ranks ${ranks}`, waits, others].filter(Boolean).join(" · ");
}
