// @ts-check
/** A line for each host: the states of its ranks, and what they use. A click selects them. */

import { element, setAttribute, setStyle, setText } from "./dom.js";
import { Rows } from "./rows.js";
import { countsByState, STATES } from "./states.js";
import { asCounted, asValue } from "./units.js";

/**
 * @import { Context, Part } from "./context.d.ts"
 * @import { HostEntry } from "./protocol.d.ts"
 */

/** @typedef {{key: "cpu" | "memory" | "gpu" | "gpu_memory", title: string, unit: string}} ColumnKind */
/** @typedef {{shown: boolean, most: number}} Column whether a host has a value in it, and the highest of these */
/** @typedef {{index: number, host: HostEntry, columns: Column[]}} Item */

const SHOWN = 64; // hosts
/** @type {ColumnKind[]} */
const COLUMNS = [
  { key: "cpu", title: "cores", unit: "" },
  { key: "memory", title: "memory", unit: "bytes" },
  { key: "gpu", title: "GPU", unit: "share" },
  { key: "gpu_memory", title: "GPU mem", unit: "bytes" },
];

/**
 * @param {Context} context
 * @returns {Part}
 */
export function makeHosts(context) {
  const { store } = context;
  const head = makeHead();
  const body = element("tbody");
  const rows = new Rows(body, (/** @type {Item} */ item) => makeRow(item, context));
  const more = element("p", { class: "meshbook-note" });
  const table = element("table", { class: "meshbook-hosts" }, head.element, body);
  const scroll = element("div", { class: "meshbook-scroll" }, table, more);
  return {
    element: element("section", { class: "meshbook-card" }, element("h4", {}, "Hosts"), scroll),
    update(changed) {
      if (!changed.has("hosts")) return;
      const columns = columnsOf(store.hosts);
      const items = store.hosts.slice(0, SHOWN).map((host, index) => ({ host, index, columns }));
      head.update(columns);
      rows.update(items, ({ host, index }) => `${index} ${host.name}`);
      setText(more, store.hosts.length > SHOWN ? asCounted(store.hosts.length - SHOWN, "more host") : "");
    },
  };
}

/**
 * The columns, of which those without a value are not shown: many machines have no GPU.
 *
 * @param {HostEntry[]} hosts
 * @returns {Column[]}
 */
export function columnsOf(hosts) {
  return COLUMNS.map(({ key, unit }) => ({
    shown: hosts.some((host) => typeof host[key] === "number"),
    most: Math.max(...hosts.map((host) => host[key] ?? 0), unit === "share" ? 1 : 0),
  }));
}

function makeHead() {
  const cells = COLUMNS.map(({ title }) => element("th", { scope: "col" }, title));
  const first = ["host", "ranks"].map((title) => element("th", { scope: "col" }, title));
  return {
    element: element("thead", {}, element("tr", {}, ...first, ...cells)),
    /** @param {Column[]} columns */
    update(columns) {
      for (const [index, cell] of cells.entries()) setAttribute(cell, "hidden", !columns[index].shown);
    },
  };
}

/**
 * @param {Item} item
 * @param {Context} context
 */
function makeRow({ index, host: { name } }, { store, selection }) {
  const ranks = () => [...store.states.keys()].filter((rank) => store.mesh?.host_of[rank] === index);
  const select = { click: () => void selection.chooseRanks(ranks()) };
  const title = `Select the ranks of ${name}`;
  const link = element("button", { type: "button", class: "meshbook-link", title, on: select }, name);
  const bar = makeStateBar();
  const amounts = COLUMNS.map(() => element("td", { class: "meshbook-amount" }));
  return {
    element: element("tr", {}, element("th", { scope: "row" }, link), element("td", {}, bar.element), ...amounts),
    /** @param {Item} item */
    update({ host, columns }) {
      bar.update(host);
      for (const [place, cell] of amounts.entries()) showAmount(cell, host, COLUMNS[place], columns[place]);
    },
  };
}

/** The ranks of a host by state, as one bar. */
function makeStateBar() {
  const parts = STATES.map(({ name }) => element("i", { style: { background: `var(--meshbook-state-${name})` } }));
  const bar = element("span", { class: "meshbook-bar", role: "img" }, ...parts);
  return {
    element: bar,
    /** @param {HostEntry} host */
    update({ ranks, counts }) {
      for (const [number, { name }] of STATES.entries())
        setStyle(parts[number], "flex-grow", String(counts[name] ?? 0));
      const words = countsByState(counts).map(({ count, title }) => `${count} ${title}`);
      setAttribute(bar, "aria-label", words.join(", "));
      setAttribute(bar, "title", `${asCounted(ranks, "rank")}: ${words.join(", ")}`);
    },
  };
}

/**
 * @param {HTMLElement} cell
 * @param {HostEntry} host
 * @param {ColumnKind} kind
 * @param {Column} column
 */
function showAmount(cell, host, { key, unit }, { shown, most }) {
  const value = host[key];
  setAttribute(cell, "hidden", !shown);
  setText(cell, asValue(value, unit));
  setStyle(cell, "--share", `${value && most ? Math.round((value / most) * 100) : 0}%`);
}
