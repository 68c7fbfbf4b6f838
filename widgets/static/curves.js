// @ts-check
/** The panel with the curves that ranks log: a chart for each metric, over the selected ranks or all. */

import { CurveChart } from "./curvechart.js";
import { CurveBook, grouped, matching } from "./curvedata.js";
import { MediaCard } from "./curvemedia.js";
import { element, setAttribute, setText } from "./dom.js";
import { messageOf } from "./errors.js";
import { Rows } from "./rows.js";
import { asCounted } from "./units.js";

/**
 * @import { Changed, Context, Panel } from "./context.d.ts"
 * @import { ChartSettings, Range } from "./curvechart.js"
 * @import { CurveAxis } from "./protocol.d.ts"
 */

const ASK_EVERY = 400; // milliseconds
const PAUSE = 4000; // milliseconds, after a question that failed
const SHARE = 5; // the kernel computes at most a fifth of the time
const MOST_POINTS = 600; // of a curve
const RUNS = [1, 4, 8]; // choices: the present one, and earlier ones beside it
const FRAME = 3; // milliseconds of drawing in a frame, after which the rest waits for the next one
const MOST_IN_FRAME = 2; // charts that are drawn in a frame
const DRAWN = "meshbook:charts"; // the entry of a frame in the browser's performance timeline
const NONE = "No metric has been logged yet. In a cell: meshbook.log(step=step, loss=loss)";

/**
 * @param {Context} context
 * @param {string[] | null} [patterns] for a view with this panel alone: the metrics to show; all if there are none
 * @returns {Panel}
 */
export function makeCurvesPanel(context, patterns = null) {
  const panel = new CurvesPanel(context, patterns);
  return {
    title: "Curves",
    element: panel.element,
    update: (changed) => panel.update(changed),
    dispose: () => panel.dispose(),
  };
}

class CurvesPanel {
  #context;
  #patterns;
  #book = new CurveBook();
  /** @type {Map<string, CurveChart | MediaCard>} */
  #cards = new Map();
  /** @type {Set<string>} */
  #visible = new Set();
  /** @type {Set<string>} cards to draw */
  #dirty = new Set();
  #frame = 0;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #mayAskAt = 0;
  #isAsking = false;
  #isOutdated = false;
  #generation = 0; // of the settings; a reply to earlier ones is discarded
  #sel = "";
  #runs = RUNS[1];
  #filter = "";
  /** @type {ChartSettings} */
  #settings = { drawing: { smoothing: 0, isLogX: false, isLogY: false }, axis: "step", range: null };
  #note = element("p", { class: "meshbook-note", role: "status" }, NONE);
  #charts = element("div", { class: "meshbook-curves" });
  #zoomed = this.#button("Show all", "Show the whole range again (key 0, or double-click)", () => this.#zoom(null));
  /** @type {HTMLInputElement} */
  #ranks = element("input", {
    type: "text",
    class: "meshbook-log-choice",
    placeholder: "Ranks: 0-3, hosts=1",
    "aria-label": "Select ranks of the charts",
    on: { change: () => void this.#context.selection.choose(this.#ranks.value) },
  });
  #everyRank = this.#button("All ranks", "", () => void this.#context.selection.clear());
  #rows = new Rows(this.#charts, (/** @type {string} */ name) => this.#makeCard(name));
  #sizes = new ResizeObserver(() => this.#drawSoon(this.#visible));
  #sight = new IntersectionObserver((entries) => this.#look(entries), { rootMargin: "100px" });

  /**
   * @param {Context} context
   * @param {string[] | null} patterns
   */
  constructor(context, patterns) {
    this.#context = context;
    this.#patterns = patterns ?? [];
    setAttribute(this.#ranks, "hidden", patterns === null); // the dashboard has such a field already
    setAttribute(this.#zoomed, "hidden", true);
    setAttribute(this.#everyRank, "hidden", true);
    this.element = element(
      "div",
      { class: "meshbook-pane meshbook-curve-pane" },
      this.#tools(),
      this.#note,
      this.#charts,
    );
    this.#sizes.observe(this.#charts);
  }

  /** @param {Changed} changed */
  update(changed) {
    const { store, selection } = this.#context;
    if (!store.mesh) return;
    if (changed.has("theme")) for (const card of this.#cards.values()) if (card instanceof CurveChart) card.recolour();
    if (selection.sel !== this.#sel) {
      this.#sel = selection.sel;
      this.#ranks.value = selection.sel || (selection.problem && this.#ranks.value);
      this.#startAnew();
    } else if (changed.has("mesh")) this.#startAnew(); // of which the curves may be others under the same names
    setAttribute(this.#ranks, "aria-invalid", selection.problem !== "");
    setAttribute(this.#ranks, "title", selection.problem || "The ranks whose curves are shown, as %%mesh takes them");
    setAttribute(this.#everyRank, "hidden", selection.size === 0);
    setAttribute(this.#everyRank, "title", `Show all ranks again, not only ${selection.text}`);
    if (changed.has("curves") || changed.has("shown")) this.#askSoon();
  }

  dispose() {
    clearTimeout(this.#timer);
    cancelAnimationFrame(this.#frame);
    this.#generation += 1;
    this.#sizes.disconnect();
    this.#sight.disconnect();
    for (const card of this.#cards.values()) card.dispose();
  }

  // -- tools ----------------------------------------------------------------------

  #tools() {
    /** @type {HTMLInputElement} */
    const filter = element("input", {
      type: "search",
      class: "meshbook-log-choice",
      placeholder: "Filter metrics",
      "aria-label": "Filter metrics",
      on: {
        input: () => {
          this.#filter = filter.value.trim().toLowerCase();
          this.#arrange();
        },
      },
    });
    /** @type {HTMLInputElement} */
    const smoothing = element("input", {
      type: "range",
      min: 0,
      max: 0.99,
      step: 0.01,
      value: 0,
      "aria-label": "Smoothing",
      on: { input: () => this.#draw({ smoothing: Number(smoothing.value) }) },
    });
    const axis = this.#select(
      "Horizontal axis",
      [
        ["step", "by step"],
        ["time", "by time"],
      ],
      (value) => {
        this.#settings = { ...this.#settings, axis: /** @type {CurveAxis} */ (value), range: null };
        this.#startAnew();
      },
    );
    const runs = this.#select(
      "Runs",
      RUNS.map((count) => [String(count), count === 1 ? "this run" : `last ${count} runs`]),
      (value) => {
        this.#runs = Number(value);
        this.#startAnew();
      },
    );
    runs.value = String(this.#runs);
    return element(
      "div",
      { class: "meshbook-curve-tools", role: "toolbar", "aria-label": "Curves" },
      filter,
      this.#ranks,
      axis,
      runs,
      this.#toggle("log y", "Logarithmic vertical axes", (isLogY) => this.#draw({ isLogY })),
      this.#toggle("log x", "Logarithmic horizontal axes", (isLogX) => this.#draw({ isLogX })),
      element("label", { class: "meshbook-curve-smoothing" }, "smooth", smoothing),
      this.#zoomed,
      this.#everyRank,
    );
  }

  /**
   * @param {string} label
   * @param {[value: string, text: string][]} choices
   * @param {(value: string) => void} chosen
   * @returns {HTMLSelectElement}
   */
  #select(label, choices, chosen) {
    /** @type {HTMLSelectElement} */
    const select = element(
      "select",
      { class: "meshbook-log-choice", "aria-label": label, on: { change: () => chosen(select.value) } },
      ...choices.map(([value, text]) => element("option", { value }, text)),
    );
    return select;
  }

  /**
   * @param {string} text
   * @param {string} title
   * @param {() => void} click
   */
  #button(text, title, click) {
    return element("button", { type: "button", class: "meshbook-log-button", title, on: { click } }, text);
  }

  /**
   * @param {string} text
   * @param {string} title
   * @param {(isOn: boolean) => void} changed
   */
  #toggle(text, title, changed) {
    const button = this.#button(text, title, () => {
      const isOn = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(isOn));
      changed(isOn);
    });
    button.setAttribute("aria-pressed", "false");
    return button;
  }

  // -- settings --------------------------------------------------------------------

  /** @param {Partial<ChartSettings["drawing"]>} change of how curves are drawn, which the kernel need not know */
  #draw(change) {
    this.#settings = { ...this.#settings, drawing: { ...this.#settings.drawing, ...change } };
    this.#drawSoon(this.#cards.keys());
  }

  /** @param {Range} range of x, in all charts */
  #zoom(range) {
    this.#settings = { ...this.#settings, range };
    this.#startAnew();
    this.#drawSoon(this.#cards.keys()); // with the points that are there, until there are more
  }

  /** Has all curves come again, after a change of what the kernel computes. */
  #startAnew() {
    setAttribute(this.#zoomed, "hidden", this.#settings.range === null);
    this.#generation += 1;
    this.#book.forget();
    this.#mayAskAt = 0;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#askSoon();
  }

  // -- questions -------------------------------------------------------------------

  /** Asks what has changed, as soon as the last question is answered and the rate limit allows. */
  #askSoon() {
    this.#isOutdated = true;
    if (this.#isAsking || this.#timer !== undefined) return;
    this.#timer = setTimeout(() => void this.#ask(), Math.max(0, this.#mayAskAt - performance.now()));
  }

  async #ask() {
    this.#timer = undefined;
    this.#isAsking = true;
    this.#isOutdated = false;
    const generation = this.#generation;
    const start = performance.now();
    this.#mayAskAt = start + ASK_EVERY;
    const { axis, range } = this.#settings;
    const names = this.#shownNames().filter((name) => this.#visible.has(name));
    try {
      const { content, buffers } = await this.#context.request("curves", {
        sel: this.#sel,
        names,
        runs: this.#runs,
        axis,
        low: range?.[0] ?? null,
        high: range?.[1] ?? null,
        points: this.#pointsOf(),
        have: this.#book.have(names),
        have_media: this.#book.haveMedia(names),
      });
      if (generation === this.#generation) {
        this.#mayAskAt = Math.max(this.#mayAskAt, start + SHARE * content.seconds * 1000);
        this.#drawSoon(this.#book.take(content, buffers));
        this.#arrange();
        if (!content.is_complete) this.#isOutdated = true;
      } else this.#isOutdated = true;
    } catch (error) {
      this.#mayAskAt = performance.now() + PAUSE;
      if (generation === this.#generation) setText(this.#note, messageOf(error));
      else this.#isOutdated = true;
    }
    this.#isAsking = false;
    if (this.#isOutdated) this.#askSoon();
  }

  /** A point for each pixel of a chart would not be told apart from its neighbours. */
  #pointsOf() {
    const width = this.#charts.firstElementChild?.clientWidth ?? 0;
    return width ? Math.max(100, Math.min(MOST_POINTS, Math.round(width * 0.75))) : 300;
  }

  // -- charts -----------------------------------------------------------------------

  #shownNames() {
    const names = [...new Set([...this.#book.metrics, ...this.#book.mediaNames])];
    const chosen = grouped(matching(names, this.#patterns));
    return chosen.filter((name) => name.toLowerCase().includes(this.#filter));
  }

  /** Has a card for each name, in order. */
  #arrange() {
    const names = this.#shownNames();
    for (const name of this.#cards.keys()) if (!names.includes(name)) this.#remove(name);
    this.#rows.update(names, (name) => name);
    const known = this.#book.metrics.length + this.#book.mediaNames.length;
    setText(this.#note, names.length ? "" : known ? `None of ${asCounted(known, "metric")} has such a name.` : NONE);
  }

  /** @param {string} name */
  #makeCard(name) {
    const isMetric = this.#book.metrics.includes(name);
    const card = isMetric ? new CurveChart(name, this.#context, (range) => this.#zoom(range)) : new MediaCard(name);
    this.#cards.set(name, card);
    this.#sight.observe(card.element);
    return { element: card.element, update: () => {} };
  }

  /** @param {string} name */
  #remove(name) {
    const card = this.#cards.get(name);
    if (!card) return;
    this.#sight.unobserve(card.element);
    card.dispose();
    this.#cards.delete(name);
    this.#visible.delete(name);
  }

  /** @param {IntersectionObserverEntry[]} entries cards that have come into view, or left it */
  #look(entries) {
    for (const { target, isIntersecting } of entries) {
      const name = /** @type {HTMLElement} */ (target).dataset.metric ?? "";
      if (isIntersecting && this.#cards.has(name)) {
        this.#visible.add(name);
        this.#drawSoon([name]);
        this.#askSoon();
      } else this.#visible.delete(name);
    }
  }

  /** @param {Iterable<string>} names */
  #drawSoon(names) {
    for (const name of names) this.#dirty.add(name);
    if (!this.#frame && this.#dirty.size) this.#frame = requestAnimationFrame(() => this.#drawSome());
  }

  /** Draws cards in view, and leaves to the next frame what does not fit into this one. */
  #drawSome() {
    this.#frame = 0;
    const start = performance.now();
    let count = 0;
    for (const name of this.#dirty) {
      if (count === MOST_IN_FRAME || (count > 0 && performance.now() - start > FRAME)) break;
      this.#dirty.delete(name);
      if (!this.#visible.has(name)) continue; // it is drawn once it is in view
      const card = this.#cards.get(name);
      if (card instanceof CurveChart) card.draw(this.#book.curvesOf(name), this.#settings);
      else card?.draw(this.#book.mediaOf(name));
      count += 1;
    }
    performance.measure(DRAWN, { start, end: performance.now(), detail: count });
    performance.clearMeasures(DRAWN);
    this.#drawSoon([]);
  }
}
