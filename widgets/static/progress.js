/** The panel of progress bars: those of the ranks with the same description as one, and how far they are apart. */

import { element, setText } from "./dom.js";
import { makeRanksLink } from "./ranklinks.js";

export function makeProgressPanel({ store, selection }) {
  const note = element("p", { class: "meshbook-note" });
  const list = element("div", { class: "meshbook-progresses" });
  return {
    title: "Progress",
    element: element("div", { class: "meshbook-pane" }, note, list),
    badge: () => (store.bars.length ? percent(Math.min(...store.bars.map(({ fraction }) => fraction))) : ""),
    update(changed) {
      if (!changed.has("bars") && !changed.has("shown") && !changed.has("mesh")) return;
      setText(note, store.bars.length ? "" : "No rank shows a progress bar.");
      list.replaceChildren(...store.bars.map((bar) => barOf(bar, selection)));
    },
  };
}

function barOf({ text, fraction, ranks, low, high }, selection) {
  const spread = high > low ? `; the ranks are at ${percent(low)} to ${percent(high)}` : "";
  const done = element("div", { class: "meshbook-progress-done", style: { left: 0, width: percent(fraction) } });
  const place = { left: percent(low), width: percent(Math.max(0, high - low)) };
  const apart = high > low ? element("div", { class: "meshbook-progress-spread", style: place }) : null;
  const now = Math.round(fraction * 100);
  const values = {
    "aria-valuenow": now,
    "aria-valuemin": 0,
    "aria-valuemax": 100,
    "aria-valuetext": `${text}${spread}`,
  };
  const track = { class: "meshbook-progress-track", role: "progressbar", title: `${now} %${spread}`, ...values };
  return element(
    "div",
    { class: "meshbook-progress" },
    makeRanksLink(ranks, selection) ?? "",
    element("div", track, done, apart),
    element("span", { class: "meshbook-progress-text" }, text),
  );
}

function percent(fraction) {
  return `${Math.round(Math.max(0, Math.min(1, fraction)) * 100)}%`;
}
