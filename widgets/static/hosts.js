/** A line for each host: how its ranks are, and how much of it they use. A click selects them. */

import { element, setAttribute, setStyle, setText } from "./dom.js";
import { Rows } from "./rows.js";
import { STATES, countsByState } from "./states.js";
import { asCounted, asValue } from "./units.js";

const SHOWN = 64; // hosts; more lines nobody reads
const COLUMNS = [
  { key: "cpu", title: "cores", unit: "" },
  { key: "memory", title: "memory", unit: "bytes" },
  { key: "gpu", title: "GPU", unit: "share" },
  { key: "gpu_memory", title: "GPU mem", unit: "bytes" },
];

export function makeHosts({ store, selection }) {
  const head = makeHead();
  const body = element("tbody");
  const rows = new Rows(body, ({ index, host }) => makeRow(index, host, { store, selection }));
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

/** Which columns have a value for any host, and their highest: most machines of tests have no GPU. */
function columnsOf(hosts) {
  const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
  return COLUMNS.map(({ key, unit }) => ({
    shown: hosts.some((host) => known(host[key])),
    most: Math.max(...hosts.map((host) => host[key] ?? 0), unit === "share" ? 1 : 0),
  }));
}

function makeHead() {
  const cells = COLUMNS.map(({ title }) => element("th", { scope: "col" }, title));
  const first = ["host", "ranks"].map((title) => element("th", { scope: "col" }, title));
  return {
    element: element("thead", {}, element("tr", {}, ...first, ...cells)),
    update: (columns) => cells.forEach((cell, place) => setAttribute(cell, "hidden", !columns[place].shown)),
  };
}

function makeRow(index, { name }, { store, selection }) {
  const ranks = () => [...store.mesh.host_of.keys()].filter((rank) => store.mesh.host_of[rank] === index);
  const select = { click: () => selection.chooseRanks(ranks()) };
  const title = `Select the ranks of ${name}`;
  const link = element("button", { type: "button", class: "meshbook-link", title, on: select }, name);
  const bar = makeStateBar();
  const amounts = COLUMNS.map(() => element("td", { class: "meshbook-amount" }));
  return {
    element: element("tr", {}, element("th", { scope: "row" }, link), element("td", {}, bar.element), ...amounts),
    update({ host, columns }) {
      bar.update(host);
      amounts.forEach((cell, place) => showAmount(cell, host[COLUMNS[place].key], COLUMNS[place], columns[place]));
    },
  };
}

/** The ranks of a host by state, as one bar. */
function makeStateBar() {
  const parts = STATES.map(({ name }) => element("i", { style: { background: `var(--meshbook-state-${name})` } }));
  const bar = element("span", { class: "meshbook-bar", role: "img" }, ...parts);
  return {
    element: bar,
    update({ ranks, counts }) {
      STATES.forEach(({ name }, place) => setStyle(parts[place], "flex-grow", String(counts[name] ?? 0)));
      const words = countsByState(counts).map(({ count, title }) => `${count} ${title}`);
      setAttribute(bar, "aria-label", words.join(", "));
      setAttribute(bar, "title", `${asCounted(ranks, "rank")}: ${words.join(", ")}`);
    },
  };
}

function showAmount(cell, value, { unit }, { shown, most }) {
  setAttribute(cell, "hidden", !shown);
  setText(cell, asValue(value, unit));
  setStyle(cell, "--share", `${value && most ? Math.round((value / most) * 100) : 0}%`);
}
