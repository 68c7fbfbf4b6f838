// @ts-check
/** The last histograms and images of ranks, side by side. */

import { asNumber } from "./curvedata.js";
import { element } from "./dom.js";

/** @import { Medium } from "./curvedata.js" */

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 160;
const HEIGHT = 70;

export class MediaCard {
  #figures = element("div", { class: "meshbook-curve-figures" });
  /** @type {string[]} */
  #addresses = []; // of the images on the page, which the browser keeps until they are released

  /** @param {string} name */
  constructor(name) {
    this.element = element(
      "section",
      { class: "meshbook-curve", "aria-label": name, dataset: { metric: name } },
      element("div", { class: "meshbook-curve-head" }, element("h4", {}, name)),
      this.#figures,
    );
  }

  /** @param {Medium[]} media by rank */
  draw(media) {
    this.dispose();
    this.#figures.replaceChildren(...media.map((medium) => this.#figure(medium)));
  }

  dispose() {
    for (const address of this.#addresses.splice(0)) URL.revokeObjectURL(address);
  }

  /** @param {Medium} medium */
  #figure(medium) {
    const { rank, run, step } = medium.entry;
    const caption = `${rank < 0 ? "notebook" : `rank ${rank}`} · ${run} · step ${asNumber(step)}`;
    return element(
      "figure",
      {},
      medium.png ? this.#image(medium.png, caption) : makeHistogram(medium, caption),
      element("figcaption", { class: "meshbook-quiet" }, caption),
    );
  }

  /**
   * @param {Uint8Array} png
   * @param {string} alt
   */
  #image(png, alt) {
    const address = URL.createObjectURL(new Blob([new Uint8Array(png)], { type: "image/png" }));
    this.#addresses.push(address);
    return element("img", { src: address, alt, class: "meshbook-curve-image" });
  }
}

/**
 * Bars, as wide as their bins, and as high as their counts for each unit of width.
 *
 * @param {Medium} medium
 * @param {string} label
 */
function makeHistogram({ counts, edges }, label) {
  const svg = document.createElementNS(SVG, "svg");
  const [from, to] = [edges[0], edges[edges.length - 1]];
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("class", "meshbook-curve-histogram");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${label}: ${asNumber(from)} to ${asNumber(to)}`);
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", barsOf(counts, edges, WIDTH, HEIGHT));
  svg.append(path);
  const ends = element("div", { class: "meshbook-curve-ends meshbook-quiet" });
  ends.append(element("span", {}, asNumber(from)), element("span", {}, asNumber(to)));
  return element("div", {}, svg, ends);
}

/**
 * The SVG path of the bars.
 *
 * @param {ArrayLike<number>} counts
 * @param {ArrayLike<number>} edges one more
 * @param {number} width
 * @param {number} height
 */
export function barsOf(counts, edges, width, height) {
  const heights = Array.from(counts, (count, bin) => count / (edges[bin + 1] - edges[bin] || 1));
  const highest = heights.reduce((one, other) => Math.max(one, other), 0) || 1;
  const scale = width / (edges[edges.length - 1] - edges[0] || 1);
  return heights
    .map((each, bin) => {
      const [left, right] = [(edges[bin] - edges[0]) * scale, (edges[bin + 1] - edges[0]) * scale];
      return `M${left.toFixed(1)} ${height}V${(height - (each / highest) * height).toFixed(1)}H${right.toFixed(1)}V${height}Z`;
    })
    .join("");
}
