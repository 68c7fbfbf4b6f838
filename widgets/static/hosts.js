/** A line for each host: how its ranks are, and how much of it they use. A click selects them. */

import { element } from "./dom.js";
import { countsByState } from "./states.js";
import { asCount, asValue } from "./units.js";

const SHOWN = 64; // hosts; more lines nobody reads, and they are written anew with each tick

export function makeHosts({ store, selection }) {
  const title = element("h4", {}, "Hosts");
  const body = element("tbody");
  const head = element("thead");
  const table = element("table", { class: "meshbook-hosts" }, head, body);
  const more = element("p", { class: "meshbook-note" });
  const section = element(
    "section",
    { class: "meshbook-card" },
    title,
    element("div", { class: "meshbook-scroll" }, table, more),
  );
  return {
    element: section,
    update(changed) {
      if (!changed.has("hosts")) return;
      const columns = columnsOf(store.hosts);
      head.replaceChildren(
        element(
          "tr",
          {},
          ...["", "ranks", ...columns.map((column) => column.title)].map((text) =>
            element("th", { scope: "col" }, text),
          ),
        ),
      );
      body.replaceChildren(
        ...store.hosts.slice(0, SHOWN).map((host, index) => row(host, index, columns, { store, selection })),
      );
      more.textContent = store.hosts.length > SHOWN ? `${asCount(store.hosts.length - SHOWN)} more hosts` : "";
    },
  };
}

const COLUMNS = [
  { key: "cpu", title: "cores", unit: "" },
  { key: "rss", title: "memory", unit: "bytes" },
  { key: "gpu", title: "GPU", unit: "share" },
  { key: "gpu_memory", title: "GPU mem", unit: "bytes" },
];

/** The columns of which any host has a value: most machines of tests have no GPU. */
function columnsOf(hosts) {
  const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
  return COLUMNS.filter(({ key }) => hosts.some((host) => known(host[key]))).map((column) => ({
    ...column,
    most: Math.max(...hosts.map((host) => host[column.key] ?? 0), column.unit === "share" ? 1 : 0),
  }));
}

function row(host, index, columns, { store, selection }) {
  const ranks = () => [...store.mesh.host_of.keys()].filter((rank) => store.mesh.host_of[rank] === index);
  const name = element(
    "button",
    {
      type: "button",
      class: "meshbook-link",
      title: `Select the ranks of ${host.name}`,
      on: { click: () => selection.chooseRanks(ranks()) },
    },
    host.name,
  );
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, name),
    element("td", {}, stateBar(host)),
    ...columns.map((column) => amount(host, column)),
  );
}

/** The ranks of a host by state, as one bar. */
function stateBar({ ranks, counts }) {
  const states = countsByState(counts);
  const parts = states.map(({ name, count }) =>
    element("i", { style: { "flex-grow": String(count), background: `var(--meshbook-state-${name})` } }),
  );
  const words = states.map(({ count, title }) => `${count} ${title}`).join(", ");
  return element(
    "span",
    { class: "meshbook-bar", role: "img", "aria-label": words, title: `${ranks} ranks: ${words}` },
    ...parts,
  );
}

function amount(host, { key, unit, most }) {
  const value = host[key];
  const share = value && most ? value / most : 0;
  return element(
    "td",
    { class: "meshbook-amount", style: { "--share": `${(share * 100).toFixed(1)}%` } },
    asValue(value, unit),
  );
}
