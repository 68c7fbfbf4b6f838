// @ts-check
/** The panel with the timeline of the last cell: a lane for each rank, with its states. */

import { element, setAttribute, setText } from "./dom.js";
import { messageOf } from "./errors.js";
import { AXIS_HEIGHT, drawTimeline, laneHeightOf, makeFills } from "./timedraw.js";
import { TimePointing } from "./timepointing.js";
import { KINDS, orderLanes, sharesOf, TimeScale } from "./timescale.js";
import { asCounted, asSeconds } from "./units.js";

/**
 * @import { Change, Changed, Context, Panel } from "./context.d.ts"
 * @import { LaneState, TimelineLane, TimelineReply } from "./protocol.d.ts"
 * @import { Fills, Pen, TimelineView, Viewport } from "./timedraw.js"
 * @import { Order } from "./timescale.js"
 */

const HIGHEST = 340; // pixels; lanes beyond it are scrolled
/** @type {Change[]} */
const REDRAWS = ["theme", "selected", "shown"];

/**
 * @param {Context} context
 * @returns {Panel}
 */
export function makeTimelinePanel(context) {
  const panel = new TimelinePanel(context);
  return {
    title: "Timeline",
    element: panel.element,
    update: (changed) => panel.update(changed),
    dispose: () => panel.dispose(),
  };
}

class TimelinePanel {
  #context;
  /** @type {TimelineView} */
  #view = { lanes: [], scale: new TimeScale(1), laneHeight: 20, cursor: -1, pointed: null, brush: null };
  /** @type {Order} */
  #order = "rank";
  /** @type {Fills | null} */
  #fills = null;
  #frame = 0;
  #isLoading = false;
  #isOutdated = true; // the timeline is not the one of the last cell
  #ran = false; // a cell ran at the last update
  #title = element("span", { class: "meshbook-time-title" });
  #legend = element("div", { class: "meshbook-time-legend" });
  #note = element("div", { class: "meshbook-note", role: "status" });
  #tip = element("div", { class: "meshbook-time-tip", hidden: true });
  #space = element("div", { class: "meshbook-time-space" });
  #canvas = element("canvas", { class: "meshbook-time-canvas", role: "img", tabindex: 0, "data-focus": "yes" });
  #scroller = element("div", { class: "meshbook-time-scroller", hidden: true }, this.#canvas, this.#space);
  #pen = /** @type {Pen} */ (this.#canvas.getContext("2d"));
  #observer = new ResizeObserver(() => this.#drawSoon());

  /** @param {Context} context */
  constructor(context) {
    this.#context = context;
    const frame = element("div", { class: "meshbook-time-frame" }, this.#scroller, this.#tip);
    this.element = element(
      "div",
      { class: "meshbook-pane meshbook-timeline" },
      this.#tools(),
      frame,
      this.#legend,
      this.#note,
    );
    this.#scroller.addEventListener("scroll", () => this.#drawSoon(), { passive: true });
    new TimePointing(this.#canvas, this.#scroller, this.#view, {
      changed: () => this.#drawSoon(),
      chose: (rank, isMore) => this.#select(rank, isMore),
      pointed: (text, x, y) => this.#showTip(text, x, y),
      reached: (lane) => this.#describe(lane),
    });
    this.#observer.observe(this.#scroller);
  }

  /** @param {Changed} changed */
  update(changed) {
    const { store } = this.#context;
    if (changed.has("theme")) this.#fills = null;
    const runs = store.cell !== null;
    if ((this.#ran && !runs) || changed.has("mesh") || changed.has("shown")) this.#isOutdated = true;
    this.#ran = runs;
    if (this.#isOutdated && store.mesh) void this.#load();
    if (REDRAWS.some((name) => changed.has(name))) this.#drawSoon();
  }

  dispose() {
    cancelAnimationFrame(this.#frame);
    this.#observer.disconnect();
  }

  #tools() {
    /** @type {HTMLSelectElement} */
    const order = element(
      "select",
      {
        class: "meshbook-log-choice",
        "aria-label": "Order of the ranks",
        on: { change: () => this.#reorder(/** @type {Order} */ (order.value)) },
      },
      element("option", { value: "rank" }, "by rank"),
      element("option", { value: "work" }, "longest work first"),
    );
    const refresh = this.#button("Refresh", "Ask the ranks again", () => void this.#load());
    const all = this.#button("Show all", "Show the whole cell (key 0, or double-click)", () => this.#showAll());
    return element("div", { class: "meshbook-time-tools" }, this.#title, order, all, refresh);
  }

  /**
   * @param {string} text
   * @param {string} title
   * @param {() => void} click
   */
  #button(text, title, click) {
    return element("button", { type: "button", class: "meshbook-log-button", title, on: { click } }, text);
  }

  async #load() {
    if (this.#isLoading) return;
    this.#isLoading = true;
    this.#isOutdated = false;
    this.element.setAttribute("aria-busy", "true");
    try {
      const { content } = await this.#context.request("timeline", { cell: null });
      this.#take(content);
    } catch (error) {
      setText(this.#note, messageOf(error));
    }
    this.#isLoading = false;
    this.element.removeAttribute("aria-busy");
  }

  /** @param {TimelineReply} reply */
  #take({ cell, seconds, lanes, open, notes }) {
    if (seconds !== this.#view.scale.seconds) this.#view.scale = new TimeScale(seconds);
    this.#view.lanes = orderLanes(lanes, this.#order);
    this.#view.cursor = -1;
    setText(
      this.#title,
      `Cell ${cell} · ${asSeconds(seconds)}${open ? " so far" : ""} · ${asCounted(lanes.length, "rank")}`,
    );
    setText(this.#note, notes.join(" · "));
    setAttribute(this.#scroller, "hidden", lanes.length === 0);
    this.#fillLegend(sharesOf(lanes, this.#view.scale.seconds));
    this.#drawSoon();
  }

  /** @param {Record<LaneState, number>} shares */
  #fillLegend(shares) {
    if (!this.#view.lanes.length) return this.#legend.replaceChildren();
    /** @type {{name: LaneState, title: string}[]} */
    const kinds = [...KINDS, { name: "idle", title: "idle" }];
    const keys = kinds.map(({ name, title }) =>
      element(
        "span",
        { class: "meshbook-time-key" },
        element("i", { class: `meshbook-time-swatch meshbook-time-${name}` }),
        `${title} ${Math.round(shares[name] * 100)} %`,
      ),
    );
    const hint = element("span", { class: "meshbook-time-hint" }, "Drag or Ctrl+wheel: zoom. Click: select the rank.");
    this.#legend.replaceChildren(...keys, hint);
    this.#canvas.setAttribute(
      "aria-label",
      `${this.#title.textContent}. ${keys.map((key) => key.textContent).join(", ")}.`,
    );
  }

  /** @param {Order} order */
  #reorder(order) {
    this.#order = order;
    this.#view.lanes = orderLanes(this.#view.lanes, order);
    this.#drawSoon();
  }

  #drawSoon() {
    if (!this.#frame) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#frame = 0;
    const width = this.#scroller.clientWidth;
    if (!width || !this.#view.lanes.length) return;
    this.#view.laneHeight = laneHeightOf(this.#view.lanes.length, HIGHEST);
    const whole = AXIS_HEIGHT + this.#view.lanes.length * this.#view.laneHeight;
    const height = Math.min(HIGHEST, whole);
    this.#scroller.style.height = `${height}px`;
    this.#space.style.height = `${whole - height}px`;
    this.#fit(width, height);
    this.#fills ??= makeFills(this.#pen, this.#context.theme);
    const { selection, theme } = this.#context;
    /** @type {Viewport} */
    const viewport = { width, height, top: this.#scroller.scrollTop, isSelected: (rank) => selection.has(rank) };
    drawTimeline(this.#pen, { ...this.#view, ...viewport }, theme, this.#fills);
  }

  /**
   * @param {number} width
   * @param {number} height
   */
  #fit(width, height) {
    const ratio = devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
    if (this.#canvas.width !== wide || this.#canvas.height !== high) {
      [this.#canvas.width, this.#canvas.height] = [wide, high];
      this.#canvas.style.height = `${height}px`;
    }
    this.#pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  #showAll() {
    this.#view.scale.showAll();
    this.#drawSoon();
  }

  /**
   * @param {number} rank
   * @param {boolean} isMore
   */
  #select(rank, isMore) {
    const { selection } = this.#context;
    void (isMore ? selection.toggle(rank) : selection.chooseRanks([rank]));
  }

  /**
   * @param {string | null} text null hides the tip
   * @param {number} x
   * @param {number} y
   */
  #showTip(text, x, y) {
    setAttribute(this.#tip, "hidden", !text);
    if (!text) return;
    setText(this.#tip, text);
    const isRight = x > this.#canvas.clientWidth / 2;
    this.#tip.style.left = `${x + (isRight ? -12 : 14)}px`;
    this.#tip.style.top = `${y + 14}px`;
    this.#tip.style.transform = isRight ? "translateX(-100%)" : "";
  }

  /**
   * Describes the lane that the keyboard has reached, for screen readers.
   *
   * @param {TimelineLane} lane
   */
  #describe(lane) {
    const shares = sharesOf([lane], this.#view.scale.seconds);
    const parts = KINDS.map(({ name, title }) => `${title} ${Math.round(shares[name] * 100)} %`);
    setText(this.#note, `${lane.label}: ${parts.join(", ")}`);
  }
}
