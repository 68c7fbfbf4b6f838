/** The five ranks that most want a look, or have most of what the grid shows, with their last minutes. */

import { channelTitle } from "./channels.js";
import { element, setText } from "./dom.js";
import { makeSpark } from "./spark.js";
import { STATES, stateIcon } from "./states.js";

export function makeWorst({ store, selection }) {
  const list = element("ol", { class: "meshbook-worst" });
  const title = element("h4");
  const none = element("li", { class: "meshbook-quiet" });
  const section = element("section", { class: "meshbook-card" }, title, list);
  return {
    element: section,
    update(changed) {
      if (!["worst", "mesh", "channel"].some((name) => changed.has(name))) return;
      const { name } = store.channel;
      setText(title, name === "state" ? "Worth a look" : `Highest: ${channelTitle(name)}`);
      setText(none, name === "state" ? "All ranks are well." : "No value is known.");
      const rows = store.worst.map((each) => row(each, store, selection));
      list.replaceChildren(...(rows.length ? rows : [none]));
    },
  };
}

function row({ rank, text, history }, store, selection) {
  const state = STATES[store.states[rank]] ?? STATES[0];
  const parts = [
    stateIcon(state),
    element("span", { class: "meshbook-rank" }, `rank ${rank}`),
    element("span", { class: "meshbook-text", title: text }, text),
    makeSpark(history ?? [], { width: 64, height: 18 }),
  ];
  const select = { click: () => selection.chooseRanks([rank]) };
  return element(
    "li",
    {},
    element("button", { type: "button", class: "meshbook-row", title: `Select rank ${rank}`, on: select }, ...parts),
  );
}
