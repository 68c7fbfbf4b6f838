/** The panel of stacks: where the ranks were when they were asked, those at the same place once. */

import { element, setText } from "./dom.js";
import { makeRanksLink } from "./ranklinks.js";

const OPEN_UP_TO = 4; // groups: with more of them, only their titles are shown

export function makeStacksPanel({ store, selection, request, announce }) {
  const note = element("p", { class: "meshbook-note" });
  const list = element("div", { class: "meshbook-stacks" });
  const take = async () => {
    setText(note, "Asking the ranks…");
    try {
      await request("act", { action: "stacks", sel: selection.sel });
    } catch (error) {
      announce(error.message, "error");
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

function noteOf(stacks) {
  if (stacks === null) return "Where each rank is now, of those that are selected or of all. Works while a cell runs.";
  const count = stacks.groups.length;
  return `Taken at ${stacks.at}: ${count === 1 ? "all at the same place" : `${count} different places`}.`;
}

function stackOf({ ranks, title, frames }, isOpen, selection) {
  const lines = frames.map(([place, code]) => element("li", {}, element("span", {}, place), element("span", {}, code)));
  return element(
    "details",
    { class: "meshbook-stack", open: isOpen },
    element("summary", {}, makeRanksLink(ranks, selection), ` ${title}`),
    element("ol", {}, ...lines),
  );
}
