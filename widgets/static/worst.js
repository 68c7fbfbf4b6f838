/** The five ranks that most want a look, or have most of what the grid shows, with their last minutes. */

import { channelTitle } from "./channels.js";
import { element, setAttribute, setText } from "./dom.js";
import { Rows } from "./rows.js";
import { makeSpark } from "./spark.js";
import { STATES, stateIcon } from "./states.js";

export function makeWorst({ store, selection }) {
  const list = element("ol", { class: "meshbook-worst" });
  const rows = new Rows(list, (each) => makeRow(each.rank, store, selection));
  const title = element("h4");
  const none = element("p", { class: "meshbook-quiet" });
  const section = element("section", { class: "meshbook-card" }, title, list, none);
  return {
    element: section,
    update(changed) {
      if (!["worst", "mesh", "channel"].some((name) => changed.has(name))) return;
      const { name } = store.channel;
      setText(title, name === "state" ? "Worth a look" : `Highest: ${channelTitle(name)}`);
      setText(none, name === "state" ? "All ranks are well." : "No value is known.");
      setAttribute(none, "hidden", store.worst.length > 0);
      rows.update(store.worst, (each) => each.rank);
    },
  };
}

function makeRow(rank, store, selection) {
  const select = { click: () => selection.chooseRanks([rank]) };
  const button = element("button", { type: "button", class: "meshbook-row", on: select });
  return {
    element: element("li", {}, button),
    update({ text, history }) {
      setAttribute(button, "title", `Select rank ${rank}: ${text}`);
      button.replaceChildren(
        stateIcon(STATES[store.states[rank]] ?? STATES[0]),
        element("span", { class: "meshbook-rank" }, `rank ${rank}`),
        element("span", { class: "meshbook-text" }, text),
        makeSpark(history ?? [], { width: 64, height: 18 }),
      );
    },
  };
}
