// @ts-check
/** A chart of one metric: the mean of the ranks, the band around it, ranks with a line of their own, earlier runs. */

import { asNumber, tableOf } from "./curvedata.js";
import { element, setAttribute, setText } from "./dom.js";
import { makeRanksLink } from "./ranklinks.js";
import { asCounted, asSeconds } from "./units.js";
import { uPlot } from "./vendor/uplot.js";

/**
 * @import { Context } from "./context.d.ts"
 * @import { Curve, Drawing, Role } from "./curvedata.js"
 * @import { CurveAxis, CurveLine } from "./protocol.d.ts"
 * @import { Options, Series, Table } from "./vendor/uplot.d.ts"
 */

/** @typedef {[number, number] | null} Range two places on x; null is everything */
/**
 * @typedef {object} ChartSettings
 * @property {Drawing} drawing
 * @property {CurveAxis} axis
 * @property {Range} range
 */

const HEIGHT = 190; // pixels of the plot with its axes
const COLOURS = 8; // of lines, in the style sheet
const ZOOM = 0.5; // of the range that is left after one key
const LEAST_DRAG = 4; // pixels; less is a click
const AXIS_FONT = "11px system-ui, sans-serif";

export class CurveChart {
  #context;
  #zoom;
  /** @type {uPlot | null} */
  #plot = null;
  #made = ""; // what the plot was made for: its columns and axes
  /** @type {Role[]} */
  #roles = [];
  /** @type {Curve[]} */
  #curves = [];
  /** @type {ChartSettings} */
  #settings = { drawing: { smoothing: 0, isLogX: false, isLogY: false }, axis: "step", range: null };
  #shownKeys = "";
  #count = element("span", { class: "meshbook-quiet" });
  #readout = element("div", { class: "meshbook-curve-readout" });
  #plotPlace = element("div", {
    class: "meshbook-curve-plot",
    role: "img",
    tabindex: 0,
    style: { height: `${HEIGHT}px` },
    on: { keydown: (/** @type {KeyboardEvent} */ event) => this.#key(event) },
  });
  #lines = element("div", { class: "meshbook-curve-lines" });

  /**
   * @param {string} metric
   * @param {Context} context
   * @param {(range: Range) => void} zoom shows a range of x in all charts
   */
  constructor(metric, context, zoom) {
    this.metric = metric;
    this.#context = context;
    this.#zoom = zoom;
    const head = element("div", { class: "meshbook-curve-head" }, element("h4", {}, metric), this.#count);
    this.element = element(
      "section",
      { class: "meshbook-curve", "aria-label": metric, dataset: { metric } },
      head,
      element("div", { class: "meshbook-curve-readout-place" }, this.#readout),
      this.#plotPlace,
      this.#lines,
    );
    // uPlot measures its place once. The page around it changes, as when a table above gets another row.
    const measure = () => this.#plot?.syncRect(true);
    for (const kind of ["mousemove", "mousedown"]) this.#plotPlace.addEventListener(kind, measure, { capture: true });
    this.#plotPlace.addEventListener("focus", () => setAttribute(this.#readout, "aria-live", "polite"));
    this.#plotPlace.addEventListener("blur", () => setAttribute(this.#readout, "aria-live", null));
  }

  /**
   * Draws these curves, the oldest run first.
   *
   * @param {Curve[]} curves
   * @param {ChartSettings} settings
   */
  draw(curves, settings) {
    this.#curves = curves;
    this.#settings = settings;
    const { table, roles } = tableOf(curves, settings.drawing);
    this.#roles = roles;
    const { isLogX, isLogY } = settings.drawing;
    const needed = JSON.stringify([roles, isLogX, isLogY, settings.axis]);
    const width = this.#plotPlace.clientWidth;
    if (!width || !curves.length) return;
    if (needed !== this.#made || !this.#plot) this.#make(table, needed, width);
    else {
      const plot = this.#plot;
      plot.batch(() => {
        if (width !== plot.width) plot.setSize({ width, height: HEIGHT });
        plot.setData(table);
      });
    }
    this.#describe();
  }

  /** Draws again in the colours of the theme. */
  recolour() {
    this.#plot?.redraw(false);
  }

  dispose() {
    this.#plot?.destroy();
    this.#plot = null;
  }

  /**
   * @param {Table} table
   * @param {string} needed
   * @param {number} width
   */
  #make(table, needed, width) {
    const { left = -1, top = -1 } = this.#plot?.cursor ?? {};
    this.dispose();
    this.#made = needed;
    const plot = new uPlot(this.#options(width), table, this.#plotPlace);
    this.#plot = plot;
    if (left >= 0) plot.batch(() => plot.setCursor({ left, top })); // the mouse rests on the chart
  }

  /**
   * @param {number} width
   * @returns {Options}
   */
  #options(width) {
    const { theme } = this.#context;
    const { drawing, axis } = this.#settings;
    const quiet = () => theme.colour("quiet");
    const line = () => theme.colour("line");
    const look = { stroke: quiet, font: AXIS_FONT, grid: { stroke: line, width: 1 }, ticks: { stroke: line, size: 4 } };
    const [low, high] = ["low", "high"].map((kind) => this.#roles.findIndex((role) => role.kind === kind) + 1);
    return {
      width,
      height: HEIGHT,
      padding: [6, 10, 0, 0],
      legend: { show: false },
      cursor: {
        drag: { x: true, y: false, setScale: false },
        y: false,
        points: { size: 6 },
        bind: { dblclick: () => () => this.#reset() },
      },
      scales: {
        x: { time: false, distr: drawing.isLogX ? 3 : 1, range: () => this.#rangeOfX() },
        y: drawing.isLogY ? { distr: 3 } : { distr: 1, range: (_, from, to) => rangeOfY(from, to) },
      },
      axes: [
        { ...look, size: 28, space: 70, values: (_, places) => places.map((place) => placeText(place, axis)) },
        { ...look, size: 56, values: (_, values) => values.map((value) => (value === null ? "" : asNumber(value))) },
      ],
      series: [{}, ...this.#roles.map((role, index) => this.#series(role, index))],
      bands: low ? [{ series: [high, low], fill: () => theme.colour("curve-band") }] : [],
      hooks: { setCursor: [() => this.#read()], setSelect: [(plot) => this.#selected(plot)] },
    };
  }

  /**
   * @param {Role} role
   * @param {number} index
   * @returns {Series}
   */
  #series({ kind, line }, index) {
    const { theme } = this.#context;
    const place = this.#roles.slice(0, index).filter((each) => each.kind === "line").length;
    /** @type {Record<Role["kind"], Series>} */
    const looks = {
      low: { points: { show: false } },
      high: { points: { show: false } },
      earlier: { stroke: () => theme.colour("curve-earlier"), width: 1.2, points: { show: false }, auto: false },
      raw: { stroke: () => theme.colour("curve-raw"), width: 1, points: { show: false } },
      mean: { stroke: () => theme.colour("accent"), width: 2 },
      line: {
        stroke: () => theme.colour(`curve-${place % COLOURS}`),
        width: line?.kind === "rank" ? 1 : 1.6,
        dash: line?.kind === "straggler" ? [6, 3] : [],
      },
    };
    return { label: kind, spanGaps: true, ...looks[kind] };
  }

  /**
   * That of the present run; earlier ones may extend beyond it.
   *
   * @returns {[number | null, number | null]}
   */
  #rangeOfX() {
    const { range, drawing } = this.#settings;
    if (range) return drawing.isLogX ? [Math.max(range[0], Number.MIN_VALUE), range[1]] : range;
    const x = this.#curves[this.#curves.length - 1]?.x ?? [];
    const from = drawing.isLogX ? x.find((value) => value > 0) : x[0];
    const to = x[x.length - 1];
    if (from === undefined) return [null, null];
    if (from !== to) return [from, to];
    if (drawing.isLogX) return [from / 2, to * 2];
    const margin = Math.max(0.5, Math.abs(from) * 1e-9); // half a step is nothing beside a time in nanoseconds
    return [from - margin, to + margin];
  }

  // -- people -------------------------------------------------------------------

  /** @param {uPlot} plot */
  #selected(plot) {
    const { left, width } = plot.select;
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    if (width >= LEAST_DRAG) this.#zoom([plot.posToVal(left, "x"), plot.posToVal(left + width, "x")]);
  }

  #reset() {
    this.#zoom(null);
    return null;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const plot = this.#plot;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!plot || event.ctrlKey || event.metaKey || event.altKey) return;
    if (step) this.#move(plot, step * (event.shiftKey ? 10 : 1));
    else if (event.key === "Home" || event.key === "End") this.#move(plot, event.key === "End" ? Infinity : -Infinity);
    else if (event.key === "+" || event.key === "=") this.#narrow(plot, ZOOM);
    else if (event.key === "-") this.#narrow(plot, 1 / ZOOM);
    else if (event.key === "0") this.#reset();
    else if (event.key === "Escape") plot.setCursor({ left: -10, top: -10 });
    else return;
    event.preventDefault();
  }

  /**
   * @param {uPlot} plot
   * @param {number} steps
   */
  #move(plot, steps) {
    const last = plot.data[0].length - 1;
    const now = plot.cursor.idx ?? (steps > 0 ? -1 : last + 1);
    const place = plot.data[0][Math.max(0, Math.min(last, now + steps))];
    if (place !== undefined) plot.setCursor({ left: plot.valToPos(place, "x"), top: 10 });
  }

  /**
   * Shows `factor` times as much of x, around the cursor or the middle.
   *
   * @param {uPlot} plot
   * @param {number} factor
   */
  #narrow(plot, factor) {
    const { min = 0, max = 0 } = plot.scales.x;
    const middle = plot.data[0][plot.cursor.idx ?? -1] ?? (min + max) / 2;
    this.#zoom([middle - (middle - min) * factor, middle + (max - middle) * factor]);
  }

  /** Shows the values at the cursor, or of the last point of the present run. */
  #read() {
    const plot = this.#plot;
    if (!plot) return;
    const mean = plot.data[this.#roles.findIndex(({ kind }) => kind === "mean") + 1] ?? [];
    const index = plot.cursor.idx ?? mean.findLastIndex((value) => typeof value === "number");
    setText(this.#readout, index < 0 ? "" : this.#textAt(plot.data, index));
    setAttribute(this.#readout, "data-pointed", plot.cursor.idx !== null && plot.cursor.idx !== undefined);
  }

  /**
   * @param {Table} table
   * @param {number} index
   */
  #textAt(table, index) {
    const { axis } = this.#settings;
    const [x, ...columns] = table;
    const parts = [axis === "step" ? `step ${placeText(x[index], axis)}` : placeText(x[index], axis)];
    /** @param {Role["kind"]} kind */
    const valueIn = (kind) => columns[this.#roles.findIndex((role) => role.kind === kind)]?.[index];
    const [smooth, raw, low, high] = [valueIn("mean"), valueIn("raw"), valueIn("low"), valueIn("high")];
    const mean = raw ?? smooth;
    if (mean !== null && mean !== undefined) {
      const isOne = low === high;
      parts.push(isOne ? asNumber(mean) : `mean ${asNumber(mean)} (${asNumber(low)} to ${asNumber(high)})`);
      if (raw !== undefined) parts.push(`smooth ${asNumber(smooth)}`);
    }
    for (const [place, role] of this.#roles.entries()) {
      const value = columns[place][index];
      if (value === null || value === undefined) continue;
      if (role.kind === "line" && role.line) parts.push(`${nameOf(role.line)}: ${asNumber(value)}`);
      if (role.kind === "earlier") parts.push(`${role.run}: ${asNumber(value)}`);
    }
    return parts.join(" · ");
  }

  #describe() {
    const present = this.#curves[this.#curves.length - 1]?.entry;
    setText(
      this.#count,
      present ? `${present.run} · ${present.ranks ? asCounted(present.ranks, "rank") : "notebook"}` : "",
    );
    const lines = present?.lines ?? [];
    this.#showKeys(lines, present?.more ?? 0);
    this.#read();
    const reasons = lines.filter(({ text }) => text).map((line) => `${nameOf(line)} ${line.text}`);
    setAttribute(
      this.#plotPlace,
      "aria-label",
      [`${this.metric}: ${this.#readout.textContent}`, ...reasons].join(". "),
    );
  }

  /**
   * Shows the keys of the lines; the same ones stay, with the focus in them.
   *
   * @param {CurveLine[]} lines
   * @param {number} more
   */
  #showKeys(lines, more) {
    const shown = JSON.stringify([lines, more]);
    if (shown === this.#shownKeys) return;
    this.#shownKeys = shown;
    const rest = more ? [`${asCounted(more, "more rank")} differ`] : [];
    this.#lines.replaceChildren(...lines.map((line, place) => this.#keyOf(line, place)), ...rest);
  }

  /**
   * @param {CurveLine} line
   * @param {number} place
   */
  #keyOf(line, place) {
    const style = { background: `var(--meshbook-curve-${place % COLOURS})` };
    const link = line.rank < 0 ? "notebook" : makeRanksLink(String(line.rank), this.#context.selection);
    return element(
      "span",
      { class: "meshbook-curve-key", dataset: { kind: line.kind } },
      element("i", { class: "meshbook-curve-swatch", style }),
      link,
      line.text ? element("span", { class: "meshbook-curve-reason" }, line.text) : null,
    );
  }
}

/** @param {CurveLine} line */
function nameOf({ rank }) {
  return rank < 0 ? "notebook" : `rank ${rank}`;
}

/**
 * @param {number} place
 * @param {CurveAxis} axis
 */
function placeText(place, axis) {
  if (place === null || place === undefined) return "";
  if (axis === "time") return asSeconds(place);
  return Number.isInteger(place) && Math.abs(place) < 1e9 ? place.toLocaleString("en") : asNumber(place);
}

/**
 * @param {number} from
 * @param {number} to
 * @returns {[number | null, number | null]}
 */
function rangeOfY(from, to) {
  if (from === null || from === undefined) return [null, null];
  if (from !== to) return uPlot.rangeNum(from, to, 0.08, true);
  const margin = Math.abs(from) * 0.1 || 1;
  return [from - margin, to + margin];
}
