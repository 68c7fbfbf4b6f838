/** Ranks as a word that selects them: in stacks, prompts, bars and events. */

import { element } from "./dom.js";
import { parseRanks } from "./ranks.js";

const LONGEST = 40; // characters; the rest is in the title

/** A button that says "ranks 0-3" and selects them; null where `ranks` is empty. */
export function makeRanksLink(ranks, selection) {
  if (!ranks) return null;
  const isOne = /^\d+$/.test(ranks);
  const shown = ranks.length > LONGEST ? `${ranks.slice(0, LONGEST)}…` : ranks;
  const click = (event) => {
    event.preventDefault(); // in a summary, the click is not for opening it
    void selection.chooseRanks(parseRanks(ranks));
  };
  const title = `Select ${isOne ? "rank" : "ranks"} ${ranks}`;
  const properties = {
    type: "button",
    class: "meshbook-link meshbook-ranks-link",
    title,
    "aria-label": title,
    on: { click },
  };
  return element("button", properties, `${isOne ? "rank" : "ranks"} ${shown}`);
}
