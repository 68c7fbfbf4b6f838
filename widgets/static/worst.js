/** The five ranks that most want a look, with their last minutes. */

import { element } from "./dom.js";
import { makeSpark } from "./spark.js";
import { STATES, stateIcon } from "./states.js";

export function makeWorst({ store, selection }) {
  const list = element("ol", { class: "meshbook-worst" });
  const section = element("section", { class: "meshbook-card" }, element("h4", {}, "Worth a look"), list);
  const calm = element("li", { class: "meshbook-quiet" }, "All ranks are well.");
  return {
    element: section,
    update(changed) {
      if (!changed.has("worst") && !changed.has("mesh")) return;
      const rows = store.worst.map((each) => row(each, store, selection));
      list.replaceChildren(...(rows.length ? rows : [calm]));
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
