// @ts-check
/** The panel of progress bars: one bar for the ranks with the same description, and how far apart they are. */

import { element, setAttribute, setStyle, setText } from "./dom.js";
import { makeRanksLink } from "./ranklinks.js";
import { Rows } from "./rows.js";

/**
 * @import { Context, Panel } from "./context.d.ts"
 * @import { BarEntry } from "./protocol.d.ts"
 * @import { Selection } from "./selection.js"
 */

/** @typedef {{bar: BarEntry, index: number}} Item */

/**
 * @param {Context} context
 * @returns {Panel}
 */
export function makeProgressPanel({ store, selection }) {
  const note = element("p", { class: "meshbook-note" });
  const list = element("div", { class: "meshbook-progresses" });
  const rows = new Rows(list, (/** @type {Item} */ { bar }) => makeBar(bar.ranks, selection));
  return {
    title: "Progress",
    element: element("div", { class: "meshbook-pane" }, note, list),
    badge: () => (store.bars.length ? percent(Math.min(...store.bars.map(({ fraction }) => fraction ?? 0))) : ""),
    update(changed) {
      if (!changed.has("bars") && !changed.has("shown") && !changed.has("mesh")) return;
      setText(note, store.bars.length ? "" : "No rank shows a progress bar.");
      rows.update(
        store.bars.map((bar, index) => ({ bar, index })),
        ({ bar, index }) => `${index} ${bar.ranks}`,
      );
    },
  };
}

/**
 * @param {string} ranks
 * @param {Selection} selection
 */
function makeBar(ranks, selection) {
  const done = element("div", { class: "meshbook-progress-done", style: { left: 0 } });
  const spreadBar = element("div", { class: "meshbook-progress-spread" });
  const limits = { "aria-valuemin": 0, "aria-valuemax": 100 };
  const track = element("div", { class: "meshbook-progress-track", role: "progressbar", ...limits }, done, spreadBar);
  const words = element("span", { class: "meshbook-progress-text" });
  const link = makeRanksLink(ranks, selection) ?? "";
  return {
    element: element("div", { class: "meshbook-progress" }, link, track, words),
    /** @param {Item} item */
    update({ bar }) {
      const [fraction, low, high] = [bar.fraction ?? 0, bar.low ?? 0, bar.high ?? 0];
      const spread = high > low ? `; the ranks are at ${percent(low)} to ${percent(high)}` : "";
      const now = Math.round(fraction * 100);
      setStyle(done, "width", percent(fraction));
      setStyle(spreadBar, "left", percent(low));
      setStyle(spreadBar, "width", percent(Math.max(0, high - low)));
      setAttribute(spreadBar, "hidden", !spread);
      setAttribute(track, "aria-valuenow", now);
      setAttribute(track, "aria-valuetext", `${bar.text}${spread}`);
      setAttribute(track, "title", `${now} %${spread}`);
      setText(words, bar.text);
    },
  };
}

/** @param {number} fraction */
function percent(fraction) {
  return `${Math.round(Math.max(0, Math.min(1, fraction)) * 100)}%`;
}
