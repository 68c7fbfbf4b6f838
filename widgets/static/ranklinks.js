// @ts-check
/** Ranks as a word that selects them: in stacks, prompts, bars and events. */

import { element } from "./dom.js";
import { parseRanks } from "./ranks.js";

/** @import { Selection } from "./selection.js" */

const LONGEST = 40; // characters; the title has all of them

/**
 * A button with the label "ranks 0-3" that selects these ranks; null if `ranks` is empty.
 *
 * @param {string} ranks
 * @param {Selection} selection
 */
export function makeRanksLink(ranks, selection) {
  if (!ranks) return null;
  const word = /^\d+$/.test(ranks) ? "rank" : "ranks";
  const shown = ranks.length > LONGEST ? `${ranks.slice(0, LONGEST)}…` : ranks;
  /** @param {Event} event */
  const click = (event) => {
    event.preventDefault(); // or a click in a summary would open it
    void selection.chooseRanks(parseRanks(ranks));
  };
  const title = `Select ${word} ${ranks}`;
  const properties = {
    type: "button",
    class: "meshbook-link meshbook-ranks-link",
    title,
    "aria-label": title,
    on: { click },
  };
  return element("button", properties, `${word} ${shown}`);
}
