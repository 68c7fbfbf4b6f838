// @ts-check
/** The panel of the mesh's events: failures, heals, respawns; the newest first. */

import { element, setText } from "./dom.js";
import { makeRanksLink } from "./ranklinks.js";

/**
 * @import { Context, Panel } from "./context.d.ts"
 * @import { EventEntry } from "./protocol.d.ts"
 * @import { Selection } from "./selection.js"
 */

/**
 * @param {Context} context
 * @returns {Panel}
 */
export function makeEventsPanel({ store, selection }) {
  const note = element("p", { class: "meshbook-note" });
  const list = element("div", { class: "meshbook-events", role: "list" });
  return {
    title: "Events",
    element: element("div", { class: "meshbook-pane" }, note, list),
    update(changed) {
      if (!changed.has("events") && !changed.has("shown") && !changed.has("mesh")) return;
      setText(note, store.events.length ? "" : "No events on this mesh yet.");
      list.replaceChildren(...[...store.events].reverse().map((event) => rowOf(event, selection)));
    },
  };
}

/**
 * @param {EventEntry} event
 * @param {Selection} selection
 */
function rowOf({ at, kind, ranks, text }, selection) {
  return element(
    "div",
    { class: "meshbook-event", role: "listitem" },
    element("span", { class: "meshbook-event-time" }, at),
    element("span", { class: "meshbook-event-kind" }, kind),
    makeRanksLink(ranks, selection),
    element("span", { class: "meshbook-event-text" }, text),
  );
}
