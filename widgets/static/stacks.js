// @ts-check
/** The panel of stacks: where the ranks were when the stacks were taken, one entry for the ranks at the same place. */

import { element, setText } from "./dom.js";
import { messageOf } from "./errors.js";
import { makeRanksLink } from "./ranklinks.js";

/**
 * @import { Context, Panel } from "./context.d.ts"
 * @import { StackEntry, StacksSection } from "./protocol.d.ts"
 * @import { Selection } from "./selection.js"
 */

const OPEN_UP_TO = 4; // groups; of more groups only the titles are shown

/**
 * @param {Context} context
 * @returns {Panel}
 */
export function makeStacksPanel({ store, selection, request, announce }) {
  const note = element("p", { class: "meshbook-note" });
  const list = element("div", { class: "meshbook-stacks" });
  const take = async () => {
    setText(note, "Asking the ranks…");
    try {
      await request("act", { action: "stacks", sel: selection.sel, cell: null });
    } catch (error) {
      announce(messageOf(error), "error");
    }
    setText(note, noteOf(store.stacks));
  };
  const button = element(
    "button",
    { type: "button", class: "meshbook-log-button", "data-focus": "yes", on: { click: () => void take() } },
    "Take stacks",
  );
  return {
    title: "Stacks",
    element: element("div", { class: "meshbook-pane" }, button, note, list),
    update(changed) {
      if (!changed.has("stacks") && !changed.has("shown") && !changed.has("mesh")) return;
      setText(note, noteOf(store.stacks));
      const groups = store.stacks?.groups ?? [];
      list.replaceChildren(...groups.map((group) => stackOf(group, groups.length <= OPEN_UP_TO, selection)));
    },
  };
}

/** @param {StacksSection | null} stacks */
function noteOf(stacks) {
  if (stacks === null) return "Shows where the selected ranks are, or all ranks. Works while a cell runs.";
  const count = stacks.groups.length;
  return `Taken at ${stacks.at}: ${count === 1 ? "all at the same place" : `${count} different places`}.`;
}

/**
 * @param {StackEntry} group
 * @param {boolean} isOpen
 * @param {Selection} selection
 */
function stackOf({ ranks, title, frames }, isOpen, selection) {
  const lines = frames.map(([place, code]) => element("li", {}, element("span", {}, place), element("span", {}, code)));
  return element(
    "details",
    { class: "meshbook-stack", open: isOpen },
    element("summary", {}, makeRanksLink(ranks, selection), ` ${title}`),
    element("ol", {}, ...lines),
  );
}
