/** The panel of the timeline: what each rank was at in the last cell, a lane a rank. */

import { element, setAttribute, setText } from "./dom.js";
import { AXIS_HEIGHT, drawTimeline, laneHeightOf, makeFills } from "./timedraw.js";
import { TimePointing } from "./timepointing.js";
import { KINDS, orderLanes, sharesOf, TimeScale } from "./timescale.js";
import { asCounted, asSeconds } from "./units.js";

const HIGHEST = 340; // pixels; more lanes than that are scrolled

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
  #view = { lanes: [], scale: new TimeScale(1), laneHeight: 20, cursor: -1, pointed: null, brush: null }; // see timedraw.js
  #order = "rank";
  #fills = null;
  #frame = 0;
  #isAsking = false;
  #wanted = true; // what is shown is not of the last cell
  #ran = false; // a cell ran when this was last updated
  #title = element("span", { class: "meshbook-time-title" });
  #legend = element("div", { class: "meshbook-time-legend" });
  #note = element("div", { class: "meshbook-note", role: "status" });
  #tip = element("div", { class: "meshbook-time-tip", hidden: true });
  #space = element("div", { class: "meshbook-time-space" });
  #canvas = element("canvas", { class: "meshbook-time-canvas", role: "img", tabindex: 0, "data-focus": "yes" });
  #scroller = element("div", { class: "meshbook-time-scroller", hidden: true }, this.#canvas, this.#space);
  #pen = this.#canvas.getContext("2d");
  #observer = new ResizeObserver(() => this.#drawSoon());

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
      pointed: (text, x, y) => this.#tell(text, x, y),
      reached: (lane) => this.#describe(lane),
    });
    this.#observer.observe(this.#scroller);
  }

  update(changed) {
    const { store } = this.#context;
    if (changed.has("theme")) this.#fills = null;
    const runs = store.cell !== null;
    if ((this.#ran && !runs) || changed.has("mesh") || changed.has("shown")) this.#wanted = true;
    this.#ran = runs;
    if (this.#wanted && store.mesh) void this.#load();
    if (["theme", "selected", "shown"].some((name) => changed.has(name))) this.#drawSoon();
  }

  dispose() {
    cancelAnimationFrame(this.#frame);
    this.#observer.disconnect();
  }

  #tools() {
    const order = element(
      "select",
      {
        class: "meshbook-log-choice",
        "aria-label": "Order of the ranks",
        on: { change: () => this.#reorder(order.value) },
      },
      element("option", { value: "rank" }, "by rank"),
      element("option", { value: "work" }, "longest at work first"),
    );
    const refresh = this.#button("Refresh", "Ask the ranks anew", () => void this.#load());
    const all = this.#button("Show all", "All of the cell's time (0, or a double click)", () => this.#showAll());
    return element("div", { class: "meshbook-time-tools" }, this.#title, order, all, refresh);
  }

  #button(text, title, click) {
    return element("button", { type: "button", class: "meshbook-log-button", title, on: { click } }, text);
  }

  async #load() {
    if (this.#isAsking) return;
    this.#isAsking = true;
    this.#wanted = false;
    this.element.setAttribute("aria-busy", "true");
    try {
      const { content } = await this.#context.request("timeline", { cell: null });
      this.#take(content);
    } catch (error) {
      setText(this.#note, error.message);
    }
    this.#isAsking = false;
    this.element.removeAttribute("aria-busy");
  }

  #take({ cell, seconds, lanes, open = false, notes = [] }) {
    const isOther = seconds !== this.#view.scale.seconds;
    if (isOther) this.#view.scale = new TimeScale(seconds);
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

  #fillLegend(shares) {
    if (!this.#view.lanes.length) return this.#legend.replaceChildren();
    const keys = [...KINDS, { name: "idle", title: "idle" }].map(({ name, title }) =>
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
    const seen = { width, height, top: this.#scroller.scrollTop, isSelected: (rank) => selection.has(rank) };
    drawTimeline(this.#pen, { ...this.#view, ...seen }, theme, this.#fills);
  }

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

  #select(rank, isMore) {
    const { selection } = this.#context;
    const others = isMore ? selection.ranks.filter((each) => each !== rank) : [];
    void selection.chooseRanks(isMore && selection.has(rank) ? others : [...others, rank]);
  }

  #tell(text, x, y) {
    setAttribute(this.#tip, "hidden", !text);
    if (!text) return;
    setText(this.#tip, text);
    const isRight = x > this.#canvas.clientWidth / 2;
    this.#tip.style.left = `${x + (isRight ? -12 : 14)}px`;
    this.#tip.style.top = `${y + 14}px`;
    this.#tip.style.transform = isRight ? "translateX(-100%)" : "";
  }

  /** What the keyboard has reached is told to who cannot see it. */
  #describe(lane) {
    const shares = sharesOf([lane], this.#view.scale.seconds);
    const parts = KINDS.map(({ name, title }) => `${title} ${Math.round(shares[name] * 100)} %`);
    setText(this.#note, `${lane.label}: ${parts.join(", ")}`);
  }
}
