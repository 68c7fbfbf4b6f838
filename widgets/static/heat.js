// @ts-check
/** Colours for amounts: a scale that rises in lightness, so that colour-blind people can read it. Pure. */

// Five points of matplotlib's viridis (Smith and van der Walt, CC0), which is perceptually uniform.
const STOPS = [
  [68, 1, 84],
  [59, 82, 139],
  [33, 145, 140],
  [94, 201, 98],
  [253, 231, 37],
];

/**
 * How far a value is from `low` to `high`, from 0 to 1; 0.5 if both are the same.
 *
 * @param {number} value
 * @param {number} low
 * @param {number} high
 */
export function shareOf(value, low, high) {
  return high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0.5;
}

/**
 * The CSS colour of a share.
 *
 * @param {number} share from 0 to 1
 */
export function heatColour(share) {
  const place = share * (STOPS.length - 1);
  const index = Math.min(STOPS.length - 2, Math.floor(place));
  const mix = STOPS[index].map((from, part) => Math.round(from + (STOPS[index + 1][part] - from) * (place - index)));
  return `rgb(${mix.join(" ")})`;
}

/** The whole scale as a CSS background, from left to right. */
export const HEAT_GRADIENT = `linear-gradient(to right, ${STOPS.map((stop) => `rgb(${stop.join(" ")})`).join(", ")})`;
