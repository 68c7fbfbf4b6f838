// @ts-check
/** The panel of hosts, their processes and their actors, with each actor's queue and the endpoint that it runs. */

import { element, setText } from "./dom.js";
import { Rows } from "./rows.js";
import { asCount } from "./units.js";

/**
 * @import { Change, Context, Panel } from "./context.d.ts"
 * @import { ActorEntry, HostProcesses, ProcessEntry } from "./protocol.d.ts"
 * @import { Selection } from "./selection.js"
 */

/** @type {Change[]} */
const SHOWS = ["topology", "mesh", "shown"];

/**
 * @param {Context} context
 * @returns {Panel}
 */
export function makeTopologyPanel({ store, selection }) {
  const note = element("p", { class: "meshbook-note" });
  const tree = element("div", { class: "meshbook-topology" });
  const hosts = new Rows(tree, (/** @type {HostProcesses} */ { host }) => makeHost(host, selection));
  return {
    title: "Actors",
    element: element("div", { class: "meshbook-pane" }, note, tree),
    update(changed) {
      if (!SHOWS.some((name) => changed.has(name))) return;
      const shown = store.topology.reduce((sum, host) => sum + host.procs.length, 0);
      setText(note, noteOf(shown, store.size));
      hosts.update(store.topology, ({ host }) => host);
    },
  };
}

/**
 * @param {number} shown
 * @param {number} size
 */
function noteOf(shown, size) {
  if (shown === 0) return "The processes have not reported yet.";
  return shown < size ? `${shown} of ${asCount(size)} processes; select ranks to see their processes.` : "";
}

/**
 * @param {string} name
 * @param {Selection} selection
 */
function makeHost(name, selection) {
  const list = element("ul");
  const rows = new Rows(list, (/** @type {ProcessEntry} */ { rank }) => makeProcess(rank, selection));
  return {
    element: element("section", { class: "meshbook-host-tree" }, element("h4", {}, name), list),
    /** @param {HostProcesses} host */
    update: ({ procs }) => rows.update(procs, ({ rank }) => rank),
  };
}

/**
 * @param {number} rank
 * @param {Selection} selection
 */
function makeProcess(rank, selection) {
  const select = { click: () => void selection.chooseRanks([rank]) };
  const title = element("button", { type: "button", class: "meshbook-link", on: select }, `rank ${rank}`);
  const pid = element("span", { class: "meshbook-quiet" });
  const actors = element("span", { class: "meshbook-actors" });
  return {
    element: element("li", {}, title, pid, actors),
    /** @param {ProcessEntry} process */
    update(process) {
      setText(pid, process.pid === null ? "" : `pid ${process.pid}`);
      actors.replaceChildren(...process.actors.map(actorChip));
    },
  };
}

/** @param {ActorEntry} actor */
function actorChip(actor) {
  const parts = [element("b", {}, actor.name)];
  if (actor.endpoint) parts.push(element("span", { class: "meshbook-runs" }, `${actor.endpoint}()`));
  if (actor.queued) parts.push(element("span", { class: "meshbook-queued" }, `${asCount(actor.queued)} queued`));
  return element("span", { class: "meshbook-actor" }, ...parts);
}
