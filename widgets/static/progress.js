/** The panel of progress bars: those of the ranks with the same description as one, and how far they are apart. */

import { element, setAttribute, setStyle, setText } from "./dom.js";
import { makeRanksLink } from "./ranklinks.js";
import { Rows } from "./rows.js";

export function makeProgressPanel({ store, selection }) {
  const note = element("p", { class: "meshbook-note" });
  const list = element("div", { class: "meshbook-progresses" });
  const rows = new Rows(list, ({ bar }) => makeBar(bar.ranks, selection));
  return {
    title: "Progress",
    element: element("div", { class: "meshbook-pane" }, note, list),
    badge: () => (store.bars.length ? percent(Math.min(...store.bars.map(({ fraction }) => fraction))) : ""),
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

function makeBar(ranks, selection) {
  const done = element("div", { class: "meshbook-progress-done", style: { left: 0 } });
  const apart = element("div", { class: "meshbook-progress-spread" });
  const limits = { "aria-valuemin": 0, "aria-valuemax": 100 };
  const track = element("div", { class: "meshbook-progress-track", role: "progressbar", ...limits }, done, apart);
  const words = element("span", { class: "meshbook-progress-text" });
  const link = makeRanksLink(ranks, selection) ?? "";
  return {
    element: element("div", { class: "meshbook-progress" }, link, track, words),
    update({ bar: { text, fraction, low, high } }) {
      const spread = high > low ? `; the ranks are at ${percent(low)} to ${percent(high)}` : "";
      const now = Math.round(fraction * 100);
      setStyle(done, "width", percent(fraction));
      setStyle(apart, "left", percent(low));
      setStyle(apart, "width", percent(Math.max(0, high - low)));
      setAttribute(apart, "hidden", !spread);
      setAttribute(track, "aria-valuenow", now);
      setAttribute(track, "aria-valuetext", `${text}${spread}`);
      setAttribute(track, "title", `${now} %${spread}`);
      setText(words, text);
    },
  };
}

function percent(fraction) {
  return `${Math.round(Math.max(0, Math.min(1, fraction)) * 100)}%`;
}
