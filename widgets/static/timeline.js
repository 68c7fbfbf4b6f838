/** The panel of the timeline: what each rank was at in the last cell, a lane a rank. */

import { element, setAttribute, setText } from "./dom.js";
import { AXIS_HEIGHT, drawTimeline, LABEL_WIDTH, laneHeightOf, makeFills } from "./timedraw.js";
import { KINDS, orderLanes, sharesOf, spanAt, TimeScale } from "./timescale.js";
import { asCount, asSeconds } from "./units.js";

const HIGHEST = 340; // pixels; more lanes than that are scrolled
const DRAGGED_FROM = 4; // pixels: less is a click
const NEAR = 3; // pixels within which a span counts as pointed at
const ZOOM = 1.25; // a notch of the wheel

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
  #lanes = [];
  #order = "rank";
  #scale = new TimeScale(1);
  #laneHeight = 20;
  #fills = null;
  #cursor = -1;
  #pointed = null;
  #brush = null;
  #drag = null; // {x, y, time} where the button went down
  #frame = 0;
  #isAsking = false;
  #wanted = true; // what is shown is not of the last cell
  #ran = false; // a cell ran when this was last updated
  #title = element("span", { class: "meshbook-time-title" });
  #legend = element("div", { class: "meshbook-time-legend" });
  #note = element("div", { class: "meshbook-note", role: "status" });
  #tip = element("div", { class: "meshbook-time-tip", role: "status", hidden: true });
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
    this.#listen();
    this.#observer.observe(this.#scroller);
  }

  update(changed) {
    const { store } = this.#context;
    if (changed.has("theme")) this.#fills = null;
    const runs = store.cell !== null;
    if ((this.#ran && !runs) || changed.has("mesh")) this.#wanted = true;
    this.#ran = runs;
    if (changed.has("shown") && runs) this.#wanted = true;
    if (this.#wanted && store.mesh) void this.#load();
    if (["theme", "selected", "shown"].some((name) => changed.has(name))) this.#drawSoon();
  }

  dispose() {
    cancelAnimationFrame(this.#frame);
    this.#observer.disconnect();
  }

  // What is shown

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
    const all = this.#button("Show all", "All of the cell's time (0, or a double click)", () =>
      this.#zoom((scale) => scale.showAll()),
    );
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
    const isOther = seconds !== this.#scale.seconds;
    if (isOther) this.#scale = new TimeScale(seconds);
    this.#lanes = orderLanes(lanes, this.#order);
    this.#cursor = -1;
    setText(
      this.#title,
      `Cell ${cell} · ${asSeconds(seconds)}${open ? " so far" : ""} · ${asCount(lanes.length)} ranks`,
    );
    setText(this.#note, notes.join(" · "));
    setAttribute(this.#scroller, "hidden", lanes.length === 0);
    this.#fillLegend(sharesOf(lanes, seconds));
    this.#drawSoon();
  }

  #fillLegend(shares) {
    if (!this.#lanes.length) return this.#legend.replaceChildren();
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
    this.#lanes = orderLanes(this.#lanes, order);
    this.#drawSoon();
  }

  #drawSoon() {
    if (!this.#frame) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    this.#frame = 0;
    const width = this.#scroller.clientWidth;
    if (!width || !this.#lanes.length) return;
    this.#laneHeight = laneHeightOf(this.#lanes.length, HIGHEST);
    const whole = AXIS_HEIGHT + this.#lanes.length * this.#laneHeight;
    const height = Math.min(HIGHEST, whole);
    this.#scroller.style.height = `${height}px`;
    this.#space.style.height = `${whole - height}px`;
    this.#fit(width, height);
    this.#fills ??= makeFills(this.#pen, this.#context.theme);
    const { selection, theme } = this.#context;
    const at = { scale: this.#scale, width, height, top: this.#scroller.scrollTop, laneHeight: this.#laneHeight };
    const marks = { cursor: this.#cursor, pointed: this.#pointed, brush: this.#brush };
    drawTimeline(
      this.#pen,
      { lanes: this.#lanes, isSelected: (rank) => selection.has(rank), ...at, ...marks },
      theme,
      this.#fills,
    );
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

  // What a person does

  #listen() {
    const canvas = this.#canvas;
    this.#scroller.addEventListener("scroll", () => this.#drawSoon(), { passive: true });
    canvas.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#moveTo(event));
    canvas.addEventListener("pointerup", (event) => this.#release(event));
    canvas.addEventListener("pointerleave", () => this.#leave());
    canvas.addEventListener("dblclick", () => this.#zoom((scale) => scale.showAll()));
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #zoom(change) {
    change(this.#scale);
    this.#drawSoon();
  }

  /** Where the pointer is: the time, and the index of the lane. */
  #at(event) {
    const x = event.offsetX - LABEL_WIDTH;
    const width = this.#canvas.clientWidth - LABEL_WIDTH;
    const index = Math.floor((event.offsetY - AXIS_HEIGHT + this.#scroller.scrollTop) / this.#laneHeight);
    const isLane = event.offsetY >= AXIS_HEIGHT && index < this.#lanes.length;
    return {
      time: this.#scale.timeAt(Math.max(0, Math.min(x, width)), width),
      lane: isLane ? this.#lanes[index] : null,
    };
  }

  #wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault(); // the browser would zoom the page
      const factor = event.deltaY > 0 ? ZOOM : 1 / ZOOM;
      this.#zoom((scale) => scale.zoom(this.#at(event).time, factor));
    } else if (event.deltaX && !this.#scale.isWhole) {
      event.preventDefault();
      this.#zoom((scale) => scale.move(event.deltaX / this.#canvas.clientWidth));
    }
  }

  #press(event) {
    if (event.button !== 0) return;
    this.#drag = { x: event.offsetX, time: this.#at(event).time };
    this.#canvas.setPointerCapture(event.pointerId);
  }

  #moveTo(event) {
    const { time, lane } = this.#at(event);
    this.#pointed = time;
    const isFar = this.#drag && Math.abs(event.offsetX - this.#drag.x) >= DRAGGED_FROM;
    this.#brush = isFar ? [this.#drag.time, time] : null;
    this.#tell(event, time, lane);
    this.#drawSoon();
  }

  #release(event) {
    const { lane } = this.#at(event);
    if (this.#brush) this.#scale.show(...this.#brush);
    else if (this.#drag && lane) this.#select(lane.rank, event.shiftKey || event.ctrlKey || event.metaKey);
    this.#drag = this.#brush = null;
    this.#drawSoon();
  }

  #leave() {
    this.#pointed = null;
    setAttribute(this.#tip, "hidden", true);
    this.#drawSoon();
  }

  #select(rank, isMore) {
    const { selection } = this.#context;
    const others = isMore ? selection.ranks.filter((each) => each !== rank) : [];
    void selection.chooseRanks(isMore && selection.has(rank) ? others : [...others, rank]);
  }

  #tell(event, time, lane) {
    const text = this.#brush
      ? `${asSeconds(Math.abs(this.#brush[1] - this.#brush[0]))}`
      : lane && this.#describe(lane, time);
    setAttribute(this.#tip, "hidden", !text);
    if (!text) return;
    setText(this.#tip, text);
    const isRight = event.offsetX > this.#canvas.clientWidth / 2;
    this.#tip.style.left = `${event.offsetX + (isRight ? -12 : 14)}px`;
    this.#tip.style.top = `${event.offsetY + 14}px`;
    this.#tip.style.transform = isRight ? "translateX(-100%)" : "";
  }

  #describe(lane, time) {
    const slack = (NEAR * (this.#scale.to - this.#scale.from)) / Math.max(1, this.#canvas.clientWidth);
    const span = spanAt(lane, time, slack);
    if (!span) return `${lane.label} · idle`;
    const [start, end, kind, name] = span;
    const title = KINDS.find((each) => each.name === kind)?.title ?? kind;
    const what = name ? `${name} (${title})` : title;
    return `${lane.label} · ${what} · ${asSeconds(end - start)}, from ${asSeconds(start)}`;
  }

  #key(event) {
    const doing = {
      "+": () => this.#scale.zoom((this.#scale.from + this.#scale.to) / 2, 1 / ZOOM),
      "-": () => this.#scale.zoom((this.#scale.from + this.#scale.to) / 2, ZOOM),
      0: () => this.#scale.showAll(),
      ArrowLeft: () => this.#scale.move(-0.15),
      ArrowRight: () => this.#scale.move(0.15),
      ArrowUp: () => this.#moveCursor(-1),
      ArrowDown: () => this.#moveCursor(1),
      Enter: () => this.#cursor >= 0 && this.#select(this.#lanes[this.#cursor].rank, event.shiftKey),
      " ": () => this.#cursor >= 0 && this.#select(this.#lanes[this.#cursor].rank, true),
    }[event.key === "=" ? "+" : event.key];
    if (!doing || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    doing();
    this.#drawSoon();
  }

  #moveCursor(step) {
    this.#cursor = Math.max(0, Math.min(this.#lanes.length - 1, this.#cursor + step));
    const [top, shown] = [
      this.#cursor * this.#laneHeight,
      this.#scroller.clientHeight - AXIS_HEIGHT - this.#laneHeight,
    ];
    this.#scroller.scrollTop = Math.max(top - shown, Math.min(this.#scroller.scrollTop, top));
    const lane = this.#lanes[this.#cursor];
    const shares = sharesOf([lane], this.#scale.seconds);
    const parts = KINDS.map(({ name, title }) => `${title} ${Math.round(shares[name] * 100)} %`);
    setText(this.#note, `${lane.label}: ${parts.join(", ")}`);
  }
}
