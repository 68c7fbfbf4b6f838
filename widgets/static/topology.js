/** The panel of hosts, their processes and their actors, with what waits for each and what it runs. */

import { element } from "./dom.js";
import { asCount } from "./units.js";

export function makeTopologyPanel({ store, selection }) {
  const note = element("p", { class: "meshbook-note" });
  const tree = element("div", { class: "meshbook-topology" });
  return {
    title: "Actors",
    element: element("div", { class: "meshbook-pane" }, note, tree),
    update(changed) {
      if (!["topology", "mesh", "shown"].some((name) => changed.has(name))) return;
      const shown = store.topology.reduce((sum, host) => sum + host.procs.length, 0);
      note.textContent = noteOf(shown, store.size);
      tree.replaceChildren(...store.topology.map((host) => hostTree(host, selection)));
    },
  };
}

function noteOf(shown, size) {
  if (shown === 0) return "Nothing is known of the processes yet.";
  return shown < size ? `${shown} of ${asCount(size)} processes; select ranks to see those.` : "";
}

function hostTree(host, selection) {
  return element(
    "section",
    { class: "meshbook-host-tree" },
    element("h4", {}, host.host),
    element("ul", {}, ...host.procs.map((process) => processTree(process, selection))),
  );
}

function processTree(process, selection) {
  const select = { click: () => selection.chooseRanks([process.rank]) };
  const title = element("button", { type: "button", class: "meshbook-link", on: select }, `rank ${process.rank}`);
  const pid = element("span", { class: "meshbook-quiet" }, `pid ${process.pid}`);
  return element("li", {}, title, pid, ...process.actors.map(actorChip));
}

function actorChip(actor) {
  const parts = [element("b", {}, actor.name)];
  if (actor.endpoint) parts.push(element("span", { class: "meshbook-runs" }, `${actor.endpoint}()`));
  if (actor.queued) parts.push(element("span", { class: "meshbook-queued" }, `${asCount(actor.queued)} queued`));
  return element("span", { class: "meshbook-actor", dataset: { busy: actor.endpoint ? "yes" : "no" } }, ...parts);
}
