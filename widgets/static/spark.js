/** Small curves: a value a second, the newest at the right. */

import { shareOf } from "./heat.js";

const SVG = "http://www.w3.org/2000/svg";

/** A curve of numbers as a picture `width` by `height`; null and NaN leave a gap. */
export function makeSpark(values, { width = 96, height = 22, label = "" } = {}) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "meshbook-spark");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", curveOf(values, width, height));
  svg.append(line);
  return svg;
}

/** The path of a curve; its lowest and highest value reach the edges. */
export function curveOf(values, width, height) {
  const known = values.filter(isKnown);
  if (known.length === 0) return "";
  const [low, high] = [known.reduce((a, b) => Math.min(a, b)), known.reduce((a, b) => Math.max(a, b))];
  const step = width / Math.max(1, values.length - 1);
  let pen = "M";
  let path = "";
  values.forEach((value, index) => {
    if (isKnown(value))
      path += `${pen}${(index * step).toFixed(1)} ${(height - 2 - shareOf(value, low, high) * (height - 4)).toFixed(1)}`;
    pen = isKnown(value) ? "L" : "M";
  });
  return path;
}

function isKnown(value) {
  return value !== null && Number.isFinite(value);
}
