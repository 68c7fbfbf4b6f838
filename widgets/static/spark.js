// @ts-check
/** Small curves: a value a second, the newest at the right. */

import { shareOf } from "./heat.js";

const FEWEST = 10; // points for which a curve has room, even if fewer are known
const LEAST = 3; // known points; fewer show no course
const SVG = "http://www.w3.org/2000/svg";

/**
 * An image of a curve. Unknown values, null and NaN, leave a gap.
 *
 * @param {(number | null)[]} values
 * @param {{width: number, height: number}} size
 */
export function makeSpark(values, { width, height }) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "meshbook-spark");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-hidden", "true"); // the text beside it says the same
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", curveOf(values, width, height));
  svg.append(line);
  return svg;
}

/**
 * The SVG path of a curve from the first known value on. The extremes are near the edges, but changes of less than two
 * percent stay nearly level: at full height they would look large. Empty if too few values are known.
 *
 * @param {(number | null)[]} values
 * @param {number} width
 * @param {number} height
 */
export function curveOf(values, width, height) {
  if (values.filter(isKnown).length < LEAST) return "";
  const shown = values.slice(Math.max(0, Math.min(values.findIndex(isKnown), values.length - FEWEST)));
  const [low, high] = rangeOf(shown.filter(isKnown));
  const step = width / Math.max(1, shown.length - 1);
  let pen = "M";
  let path = "";
  for (const [index, value] of shown.entries()) {
    if (isKnown(value)) {
      const y = height - 2 - shareOf(value, low, high) * (height - 4);
      path += `${pen}${(index * step).toFixed(1)} ${y.toFixed(1)}`;
    }
    pen = isKnown(value) ? "L" : "M";
  }
  return path;
}

/** @param {number[]} known */
function rangeOf(known) {
  const low = known.reduce((one, other) => Math.min(one, other), Infinity);
  const high = known.reduce((one, other) => Math.max(one, other), -Infinity);
  const missing = Math.max(0, 0.02 * Math.max(Math.abs(low), Math.abs(high)) - (high - low));
  return [low - missing / 2, high + missing / 2];
}

/**
 * @param {number | null} value
 * @returns {value is number}
 */
function isKnown(value) {
  return value !== null && Number.isFinite(value);
}
