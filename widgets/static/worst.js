// @ts-check
/** The five ranks that need attention most, or have the worst values of the channel, with their last minutes. */

import { channelTitle, extremeOf } from "./channels.js";
import { element, setAttribute, setText } from "./dom.js";
import { Rows } from "./rows.js";
import { makeSpark } from "./spark.js";
import { stateIcon, stateOf } from "./states.js";

/**
 * @import { Change, Context, Part } from "./context.d.ts"
 * @import { WorstEntry } from "./protocol.d.ts"
 */

/** @type {Change[]} */
const SHOWS = ["worst", "mesh", "channel"];

/**
 * @param {Context} context
 * @returns {Part}
 */
export function makeWorst(context) {
  const { store } = context;
  const list = element("ol", { class: "meshbook-worst" });
  const rows = new Rows(list, (/** @type {WorstEntry} */ { rank }) => makeRow(rank, context));
  const title = element("h4");
  const none = element("p", { class: "meshbook-quiet" });
  return {
    element: element("section", { class: "meshbook-card" }, title, list, none),
    update(changed) {
      if (!SHOWS.some((name) => changed.has(name))) return;
      const { name } = store.channel;
      setText(title, name === "state" ? "Needs attention" : `${extremeOf(name)}: ${channelTitle(name)}`);
      setText(none, name === "state" ? "All ranks are healthy." : "No values yet.");
      setAttribute(none, "hidden", store.worst.length > 0);
      rows.update(store.worst, ({ rank }) => rank);
    },
  };
}

/**
 * @param {number} rank
 * @param {Context} context
 */
function makeRow(rank, { store, selection }) {
  const select = { click: () => void selection.chooseRanks([rank]) };
  const button = element("button", { type: "button", class: "meshbook-row", on: select });
  return {
    element: element("li", {}, button),
    /** @param {WorstEntry} entry */
    update({ text, history }) {
      setAttribute(button, "title", `Select rank ${rank}: ${text}`);
      button.replaceChildren(
        stateIcon(stateOf(store.states[rank])),
        element("span", { class: "meshbook-rank" }, `rank ${rank}`),
        element("span", { class: "meshbook-text" }, text),
        makeSpark(history ?? [], { width: 64, height: 18 }),
      );
    },
  };
}
