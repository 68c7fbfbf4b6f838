/** The panel of hosts, their processes and their actors, with what waits for each and what it runs. */

import { element, setText } from "./dom.js";
import { Rows } from "./rows.js";
import { asCount } from "./units.js";

export function makeTopologyPanel({ store, selection }) {
  const note = element("p", { class: "meshbook-note" });
  const tree = element("div", { class: "meshbook-topology" });
  const hosts = new Rows(tree, (host) => makeHost(host, selection));
  return {
    title: "Actors",
    element: element("div", { class: "meshbook-pane" }, note, tree),
    update(changed) {
      if (!["topology", "mesh", "shown"].some((name) => changed.has(name))) return;
      const shown = store.topology.reduce((sum, host) => sum + host.procs.length, 0);
      setText(note, noteOf(shown, store.size));
      hosts.update(store.topology, ({ host }) => host);
    },
  };
}

function noteOf(shown, size) {
  if (shown === 0) return "Nothing is known of the processes yet.";
  return shown < size ? `${shown} of ${asCount(size)} processes; select ranks to see those.` : "";
}

function makeHost({ host }, selection) {
  const list = element("ul");
  const rows = new Rows(list, ({ rank }) => makeProcess(rank, selection));
  return {
    element: element("section", { class: "meshbook-host-tree" }, element("h4", {}, host), list),
    update: ({ procs }) => rows.update(procs, ({ rank }) => rank),
  };
}

function makeProcess(rank, selection) {
  const select = { click: () => selection.chooseRanks([rank]) };
  const title = element("button", { type: "button", class: "meshbook-link", on: select }, `rank ${rank}`);
  const pid = element("span", { class: "meshbook-quiet" });
  const actors = element("span", { class: "meshbook-actors" });
  return {
    element: element("li", {}, title, pid, actors),
    update(process) {
      setText(pid, `pid ${process.pid}`);
      actors.replaceChildren(...process.actors.map(actorChip));
    },
  };
}

function actorChip(actor) {
  const parts = [element("b", {}, actor.name)];
  if (actor.endpoint) parts.push(element("span", { class: "meshbook-runs" }, `${actor.endpoint}()`));
  if (actor.queued) parts.push(element("span", { class: "meshbook-queued" }, `${asCount(actor.queued)} queued`));
  return element("span", { class: "meshbook-actor" }, ...parts);
}
