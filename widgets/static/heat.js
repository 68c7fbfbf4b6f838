/** Colours for amounts: a scale that the colour-blind read as well, and that rises in lightness. */

// Five points of matplotlib's viridis (Smith and van der Walt, CC0), which is perceptually uniform.
const STOPS = [
  [68, 1, 84],
  [59, 82, 139],
  [33, 145, 140],
  [94, 201, 98],
  [253, 231, 37],
];

/** How far a value is from `low` to `high`: 0 to 1. Where both are the same, all is in the middle. */
export function shareOf(value, low, high) {
  return high > low ? Math.min(1, Math.max(0, (value - low) / (high - low))) : 0.5;
}

/** The colour of a share from 0 to 1, as CSS has it. */
export function heatColour(share) {
  const place = share * (STOPS.length - 1);
  const index = Math.min(STOPS.length - 2, Math.floor(place));
  const mix = STOPS[index].map((from, channel) =>
    Math.round(from + (STOPS[index + 1][channel] - from) * (place - index)),
  );
  return `rgb(${mix.join(" ")})`;
}

/** All of the scale as a CSS background, from left to right. */
export const HEAT_GRADIENT = `linear-gradient(to right, ${STOPS.map((stop) => `rgb(${stop.join(" ")})`).join(", ")})`;
