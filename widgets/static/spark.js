/** Small curves: a value a second, the newest at the right. */

import { shareOf } from "./heat.js";

const FEWEST = 10; // points that a curve is drawn as wide as, however few are known
const SVG = "http://www.w3.org/2000/svg";

/** A curve of numbers as a picture `width` by `height`; null and NaN leave a gap. */
export function makeSpark(values, { width, height }) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "meshbook-spark");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-hidden", "true"); // what it says stands beside it
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", curveOf(values, width, height));
  svg.append(line);
  return svg;
}

/**
 * The path of a curve, from the first value that is known, its lowest and highest near the edges. What changes by less than
 * two percent is shown as nearly level: it would look like a storm.
 */
export function curveOf(values, width, height) {
  const shown = values.slice(Math.max(0, Math.min(values.findIndex(isKnown), values.length - FEWEST)));
  const [low, high] = rangeOf(shown.filter(isKnown));
  const step = width / Math.max(1, shown.length - 1);
  let pen = "M";
  let path = "";
  shown.forEach((value, index) => {
    const y = height - 2 - shareOf(value, low, high) * (height - 4);
    if (isKnown(value)) path += `${pen}${(index * step).toFixed(1)} ${y.toFixed(1)}`;
    pen = isKnown(value) ? "L" : "M";
  });
  return path;
}

function rangeOf(known) {
  const low = known.reduce((one, other) => Math.min(one, other), Infinity);
  const high = known.reduce((one, other) => Math.max(one, other), -Infinity);
  const wanting = Math.max(0, 0.02 * Math.max(Math.abs(low), Math.abs(high)) - (high - low));
  return [low - wanting / 2, high + wanting / 2];
}

function isKnown(value) {
  return value !== null && Number.isFinite(value);
}
