// @ts-check
/** The panel of ranks that wait for a person: in the debugger, or at a prompt. */

import { element, setText } from "./dom.js";
import { makeRanksLink } from "./ranklinks.js";

/**
 * @import { Context, Panel } from "./context.d.ts"
 * @import { PauseEntry } from "./protocol.d.ts"
 * @import { Selection } from "./selection.js"
 */

/**
 * @param {Context} context
 * @returns {Panel}
 */
export function makePausedPanel({ store, selection }) {
  const note = element("p", { class: "meshbook-note" });
  const list = element("div", { class: "meshbook-paused", role: "list" });
  return {
    title: "Paused",
    element: element("div", { class: "meshbook-pane" }, note, list),
    badge: () => (store.pauses.length ? String(store.pauses.length) : ""),
    update(changed) {
      if (!changed.has("pauses") && !changed.has("shown") && !changed.has("mesh")) return;
      setText(
        note,
        store.pauses.length
          ? "These ranks are waiting for input. The prompt is below their cell."
          : "No rank is waiting for input.",
      );
      list.replaceChildren(...store.pauses.map((pause) => rowOf(pause, selection)));
    },
  };
}

/**
 * @param {PauseEntry} pause
 * @param {Selection} selection
 */
function rowOf({ ranks, what, place }, selection) {
  const where = place ? element("span", { class: "meshbook-quiet" }, place) : null;
  return element("div", { class: "meshbook-pause", role: "listitem" }, makeRanksLink(ranks, selection), what, where);
}
