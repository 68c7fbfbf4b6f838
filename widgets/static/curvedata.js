// @ts-check
/** The curves that a view has, and the tables that charts draw. Pure. */

import { arrayOf } from "./store.js";
import { uPlot } from "./vendor/uplot.js";

/**
 * @import { CurveEntry, CurveKey, CurveLine, CurvesReply, MediumEntry, MediumKey } from "./protocol.d.ts"
 * @import { Table } from "./vendor/uplot.d.ts"
 */

/** @typedef {{entry: CurveEntry, x: Float64Array, rows: Float32Array[]}} Curve `rows`: mean, lowest, highest, lines */
/** @typedef {{entry: MediumEntry, png: Uint8Array | null, counts: Float64Array, edges: Float64Array}} Medium */
/**
 * How tables are drawn: `smoothing` from 0 to 1, and whether axes are logarithmic, which have no place for other values
 * than positive ones.
 *
 * @typedef {{smoothing: number, isLogX: boolean, isLogY: boolean}} Drawing
 */
/**
 * What a column of a table is. `line` and its place among all lines only for lines, `run` only for earlier runs.
 *
 * @typedef {{kind: "low" | "high" | "earlier" | "raw" | "mean" | "line", run: string, line?: CurveLine}} Role
 */
/** @typedef {{table: Table, roles: Role[]}} Drawn `roles` of the columns after x */

const ROWS = 3; // of a curve before its lines: mean, lowest, highest

/** The curves and media of a view, by what they belong to. */
export class CurveBook {
  /** @type {string[]} */
  metrics = [];
  /** @type {string[]} */
  mediaNames = [];
  /** @type {Map<string, string[]>} */
  #runs = new Map();
  /** @type {Map<string, Curve>} */
  #curves = new Map();
  /** @type {Map<string, Medium>} */
  #media = new Map();

  /**
   * Applies a reply; returns the names whose charts look different now.
   *
   * @param {CurvesReply} reply
   * @param {DataView[]} buffers
   */
  take(reply, buffers) {
    this.metrics = reply.metrics;
    this.mediaNames = reply.media_names;
    /** @type {Set<string>} */
    const changed = new Set();
    for (const { metric, runs } of reply.charts) {
      if (String(this.#runs.get(metric)) !== String(runs)) changed.add(metric);
      this.#runs.set(metric, runs);
      for (const [key, { entry }] of this.#curves) {
        if (entry.metric === metric && !runs.includes(entry.run)) this.#curves.delete(key);
      }
    }
    const left = buffers.values();
    const next = () => /** @type {DataView} */ (left.next().value);
    for (const entry of reply.curves) {
      const [x, values] = [arrayOf(Float64Array, next()), arrayOf(Float32Array, next())];
      const rows = Array.from({ length: ROWS + entry.lines.length }, (_, row) =>
        values.subarray(row * entry.points, (row + 1) * entry.points),
      );
      this.#curves.set(keyOf(entry.metric, entry.run), { entry, x, rows });
      changed.add(entry.metric);
    }
    for (const entry of reply.media) {
      this.#media.set(keyOf(entry.name, entry.rank), mediumOf(entry, next));
      changed.add(entry.name);
    }
    return changed;
  }

  /** Has everything come again, with other settings. Curves stay until then. */
  forget() {
    for (const curve of this.#curves.values()) curve.entry = { ...curve.entry, version: -1 };
    this.#media.clear();
  }

  /**
   * The curves of these metrics that need not come again.
   *
   * @param {string[]} names
   * @returns {CurveKey[]}
   */
  have(names) {
    return names.flatMap((name) =>
      this.curvesOf(name).map(({ entry }) => /** @type {CurveKey} */ ([entry.metric, entry.run, entry.version])),
    );
  }

  /**
   * @param {string[]} names
   * @returns {MediumKey[]}
   */
  haveMedia(names) {
    return names.flatMap((name) =>
      this.mediaOf(name).map(({ entry }) => /** @type {MediumKey} */ ([name, entry.run, entry.rank, entry.time])),
    );
  }

  /**
   * The curves of a metric that are known, the oldest run first.
   *
   * @param {string} name
   * @returns {Curve[]}
   */
  curvesOf(name) {
    const curves = (this.#runs.get(name) ?? []).map((run) => this.#curves.get(keyOf(name, run)));
    return curves.filter((curve) => curve !== undefined);
  }

  /**
   * The last histogram or image of each rank, by rank.
   *
   * @param {string} name
   */
  mediaOf(name) {
    const media = [...this.#media.values()].filter(({ entry }) => entry.name === name);
    const newest = media.reduce((time, { entry }) => Math.max(time, entry.time), 0);
    const run = media.find(({ entry }) => entry.time === newest)?.entry.run;
    return media.filter(({ entry }) => entry.run === run).sort((one, other) => one.entry.rank - other.entry.rank);
  }
}

/**
 * @param {string} name
 * @param {string | number} part
 */
function keyOf(name, part) {
  return JSON.stringify([name, part]);
}

/**
 * @param {MediumEntry} entry
 * @param {() => DataView} next
 * @returns {Medium}
 */
function mediumOf(entry, next) {
  const none = new Float64Array(0);
  if (entry.kind === "image") return { entry, png: arrayOf(Uint8Array, next()), counts: none, edges: none };
  return { entry, png: null, counts: arrayOf(Float64Array, next()), edges: arrayOf(Float64Array, next()) };
}

/**
 * An exponential moving average without the bias towards its first value. A NaN stays one and has no influence.
 *
 * @param {ArrayLike<number> & Iterable<number>} values
 * @param {number} weight of what came before: 0 changes nothing, near 1 is smooth
 * @returns {ArrayLike<number> & Iterable<number>}
 */
export function smoothed(values, weight) {
  if (weight === 0) return values;
  let [sum, total] = [0, 0];
  return Float64Array.from(values, (value) => {
    if (!Number.isFinite(value)) return NaN;
    sum = sum * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return sum / total;
  });
}

/**
 * The table of a chart: x, then the columns that `roles` describe. The last curve is the present one and has a band and
 * lines; the earlier ones are means.
 *
 * @param {Curve[]} curves
 * @param {Drawing} drawing
 * @returns {Drawn}
 */
export function tableOf(curves, drawing) {
  const present = curves[curves.length - 1];
  if (!present) return { table: [[]], roles: [] };
  const { run, lines } = present.entry;
  const [mean, low, high, ...rest] = present.rows;
  const isSmooth = drawing.smoothing > 0;
  /** @type {[Role, ArrayLike<number>][]} */
  const columns = [
    [{ kind: "low", run }, low],
    [{ kind: "high", run }, high],
    ...(isSmooth ? [/** @type {[Role, ArrayLike<number>]} */ ([{ kind: "raw", run }, mean])] : []),
    ...lines.map((line, place) => {
      /** @type {Role} */
      const role = { kind: "line", run, line };
      return /** @type {[Role, ArrayLike<number>]} */ ([role, smoothed(rest[place], drawing.smoothing)]);
    }),
    [{ kind: "mean", run }, smoothed(mean, drawing.smoothing)],
  ];
  const earlier = curves
    .slice(0, -1)
    .map((curve) => tableFrom(curve.x, [smoothed(curve.rows[0], drawing.smoothing)], drawing));
  const tables = [
    ...earlier,
    tableFrom(
      present.x,
      columns.map(([, values]) => values),
      drawing,
    ),
  ];
  /** @type {Role[]} */
  const roles = curves.slice(0, -1).map(({ entry }) => ({ kind: "earlier", run: entry.run }));
  return { table: uPlot.join(tables), roles: [...roles, ...columns.map(([role]) => role)] };
}

/**
 * @param {Float64Array} x
 * @param {ArrayLike<number>[]} rows
 * @param {Drawing} drawing
 * @returns {Table}
 */
function tableFrom(x, rows, { isLogX, isLogY }) {
  const first = isLogX ? x.findIndex((value) => value > 0) : 0;
  if (first < 0) return [[], ...rows.map(() => [])];
  /** @param {number} value */
  const shown = (value) => (Number.isFinite(value) && (!isLogY || value > 0) ? value : null);
  return [Array.from(x.subarray(first)), ...rows.map((row) => Array.from(row, shown).slice(first))];
}

/**
 * The names that any of the patterns selects: a name, a group ("train" has "train/loss"), or a pattern with "*". All names
 * if there are no patterns.
 *
 * @param {string[]} names
 * @param {string[]} patterns
 */
export function matching(names, patterns) {
  if (!patterns.length) return names;
  const rules = patterns.map((pattern) => {
    const parts = pattern.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&"));
    return new RegExp(`^${parts.join(".*")}(/.*)?$`);
  });
  return names.filter((name) => rules.some((rule) => rule.test(name)));
}

/**
 * Names with those of a group ("train/") side by side, in the order in which the groups appeared.
 *
 * @param {string[]} names
 */
export function grouped(names) {
  /** @type {Map<string, string[]>} */
  const groups = new Map();
  for (const name of names) {
    const group = name.includes("/") ? name.slice(0, name.indexOf("/")) : name;
    groups.set(group, [...(groups.get(group) ?? []), name]);
  }
  return [...groups.values()].flat();
}

/**
 * A number of a curve for people, in four significant digits: 0.3125, 1.25e-7, 12,340.
 *
 * @param {number | null | undefined} value
 */
export function asNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6 || (size < 1e-4 && size > 0)) return value.toExponential(2).replace("e+", "e");
  return Number(value.toPrecision(size >= 1000 ? Math.floor(Math.log10(size)) + 1 : 4)).toLocaleString("en", {
    maximumFractionDigits: 8,
  });
}
