// @ts-check
/**
 * The places of the ranks' cells, by the dimensions of the mesh. Pure.
 *
 * The last dimension runs across, as a row; the one before it down. If that is too high, several rows share a line, and are
 * read like words. Dimensions before those two are blocks with a heading. A mesh of one dimension is wrapped like text.
 */

import { pointOf } from "./ranks.js";
import { asCount } from "./units.js";

/** @import { Dim } from "./protocol.d.ts" */

/** @typedef {{x: number, y: number}} Spot */
/** @typedef {{left: number, top: number, right: number, bottom: number}} Box */
/** @typedef {{x: number, y: number, text: string, heading: boolean}} Label */
/**
 * All in pixels but `rows` and `stride`.
 *
 * @typedef {object} Layout
 * @property {number} cell a cell's side
 * @property {number} gap between two cells
 * @property {number} rows how many share a line
 * @property {number} stride how many ranks are between a rank and the one below it
 * @property {Float32Array} lefts by rank
 * @property {Float32Array} tops by rank
 * @property {Label[]} labels
 * @property {number} width
 * @property {number} height
 */
/**
 * How cells of one size would lie: `across` on a line of one row, `between` two rows of a line, `pitch` from cell to cell.
 *
 * @typedef {object} Plan
 * @property {Dim[]} dims
 * @property {number} cell
 * @property {number} gap
 * @property {number} pitch
 * @property {number} between
 * @property {number} across
 * @property {number} rows
 * @property {boolean} fits
 */

const LARGEST = 40; // pixels of a cell's side
const SMALLEST = 5;
const ROOMY = 18; // pixels of a cell's side, down to which each row keeps a line of its own
const GUTTER = 34; // pixels at the left for the labels of lines
const LABEL_HEIGHT = 13;
const HEADING_HEIGHT = 20;

/**
 * The layout with the largest cells for which all ranks fit. If none fit, the layout with the smallest cells, which is higher.
 *
 * @param {Dim[]} dims
 * @param {number} width
 * @param {number} height
 * @returns {Layout}
 */
export function layoutGrid(dims, width, height) {
  for (const [smallest, rows] of [
    [ROOMY, 1],
    [SMALLEST, Infinity],
  ]) {
    for (let cell = LARGEST; cell >= smallest; cell -= 1) {
      const plan = planWith(cell, dims, { width, height, rows });
      if (plan.fits) return place(plan);
    }
  }
  return place(planWith(SMALLEST, dims, { width, height, rows: Infinity }));
}

/**
 * The rank whose cell is at a point, or null. O(n) in ranks: some microseconds for 4096.
 *
 * @param {Layout} layout
 * @param {number} x
 * @param {number} y
 */
export function rankAt(layout, x, y) {
  const reach = layout.cell + layout.gap;
  const found = layout.lefts.findIndex((left, rank) => within(x, left, reach) && within(y, layout.tops[rank], reach));
  return found < 0 ? null : found;
}

/**
 * The ranks whose cells touch a box.
 *
 * @param {Layout} layout
 * @param {Box} box
 */
export function ranksIn(layout, { left, top, right, bottom }) {
  const ranks = [];
  for (let rank = 0; rank < layout.lefts.length; rank += 1) {
    const [x, y] = [layout.lefts[rank], layout.tops[rank]];
    if (x <= right && x + layout.cell >= left && y <= bottom && y + layout.cell >= top) ranks.push(rank);
  }
  return ranks;
}

/**
 * How to read the grid: `rows: 16 hosts, columns: 8 gpus`, or `8 gpus per row, 11 hosts side by side`.
 *
 * @param {Dim[]} dims
 * @param {number} rows that share a line
 */
export function captionOf(dims, rows) {
  const words = dims.map(([name, size]) => `${asCount(size)} ${name}`);
  if (words.length < 2) return words.join("");
  const [down, across] = words.slice(-2);
  const [name] = dims[dims.length - 2];
  const places =
    rows > 1 ? [`${across} per row`, `${rows} ${name} side by side`] : [`rows: ${down}`, `columns: ${across}`];
  return [...words.slice(0, -2), ...places].join(", ");
}

/**
 * @param {number} value
 * @param {number} start
 * @param {number} length
 */
function within(value, start, length) {
  return value >= start && value < start + length;
}

/**
 * The plan for cells of this size, with the fewest rows to a line that fit into the height, or as many as possible.
 *
 * @param {number} cell
 * @param {Dim[]} dims
 * @param {{width: number, height: number, rows: number}} limits
 * @returns {Plan}
 */
function planWith(cell, dims, { width, height, rows: limit }) {
  const gap = cell >= 16 ? 4 : cell >= 10 ? 3 : cell >= 7 ? 2 : 1;
  const pitch = cell + gap;
  const between = Math.min(pitch, 16); // two rows of a line
  const room = Math.max(1, Math.floor((width - GUTTER + gap) / pitch));
  const across = cellsAcross(lengthOf(dims), room);
  const pieces = Math.ceil(lengthOf(dims) / across); // lines that a row is wrapped into
  const most = Math.min(limit, pieces > 1 ? 1 : Math.floor((width - GUTTER + between) / (across * pitch + between)));
  /** @param {number} rows */
  const heightWith = (rows) => blocksOf(dims) * (headingHeight(dims) + Math.ceil(rowsOf(dims) / rows) * pieces * pitch);
  let rows = 1;
  while (rows < most && heightWith(rows) > height) rows += 1;
  return { dims, cell, gap, pitch, between, across, rows, fits: heightWith(rows) <= height };
}

/** @param {Dim[]} dims */
function lengthOf(dims) {
  return dims.at(-1)?.[1] ?? 1;
}

/** @param {Dim[]} dims */
function rowsOf(dims) {
  return dims.at(-2)?.[1] ?? 1;
}

/** @param {Dim[]} dims */
function blocksOf(dims) {
  return dims.slice(0, -2).reduce((product, [, length]) => product * length, 1);
}

/** @param {Dim[]} dims */
function headingHeight(dims) {
  return dims.length > 2 ? HEADING_HEIGHT : 0;
}

/**
 * How many cells of a row are on one line: all of them, or a round number if there is no room for all.
 *
 * @param {number} length
 * @param {number} room
 */
function cellsAcross(length, room) {
  if (length <= room) return length;
  const round = [64, 32, 16, 8].find((multiple) => room >= multiple) ?? 1;
  return Math.floor(room / round) * round;
}

/** @param {Plan} plan */
function place(plan) {
  const { dims, cell, gap, pitch, across, rows } = plan;
  const size = blocksOf(dims) * rowsOf(dims) * lengthOf(dims);
  const stride = across < lengthOf(dims) ? across : across * rows;
  /** @type {Layout} */
  const layout = {
    cell,
    gap,
    rows,
    stride,
    lefts: new Float32Array(size),
    tops: new Float32Array(size),
    labels: [],
    width: 0,
    height: 0,
  };
  let top = 0;
  for (let block = 0; block < blocksOf(dims); block += 1) top = placeBlock(layout, plan, block, top);
  layout.height = top;
  layout.width = GUTTER + Math.min(rows, rowsOf(dims)) * (across * pitch + plan.between) - plan.between - gap;
  return layout;
}

/**
 * Places the rows of a block below `top`. Returns where the next block begins.
 *
 * @param {Layout} layout
 * @param {Plan} plan
 * @param {number} block
 * @param {number} top
 */
function placeBlock(layout, plan, block, top) {
  const { dims, pitch, rows } = plan;
  if (dims.length > 2)
    layout.labels.push({ x: GUTTER, y: top + HEADING_HEIGHT / 2, text: headingOf(dims, block), heading: true });
  const start = { top: top + headingHeight(dims), labelled: -LABEL_HEIGHT };
  const pieces = Math.ceil(lengthOf(dims) / plan.across);
  for (let row = 0; row < rowsOf(dims); row += 1) {
    const lineTop = start.top + Math.floor(row / rows) * pieces * pitch;
    if (row % rows === 0 && dims.length > 1) addLabel(layout, start, lineTop, row);
    placeRow(layout, plan, {
      first: (block * rowsOf(dims) + row) * lengthOf(dims),
      column: row % rows,
      top: lineTop,
      start,
    });
  }
  return start.top + Math.ceil(rowsOf(dims) / rows) * pieces * pitch;
}

/**
 * @param {Layout} layout
 * @param {Plan} plan
 * @param {{first: number, column: number, top: number, start: BlockStart}} row
 */
function placeRow(layout, { dims, pitch, across, between }, { first, column, top, start }) {
  const left = GUTTER + column * (across * pitch + between);
  for (let index = 0; index < lengthOf(dims); index += 1) {
    const lineTop = top + Math.floor(index / across) * pitch;
    if (dims.length < 2 && index % across === 0) addLabel(layout, start, lineTop, index);
    layout.lefts[first + index] = left + (index % across) * pitch;
    layout.tops[first + index] = lineTop;
  }
}

/** @typedef {{top: number, labelled: number}} BlockStart where a block begins, and where its last label is */

/**
 * Labels a line, unless the label would overlap the one above.
 *
 * @param {Layout} layout
 * @param {BlockStart} start
 * @param {number} top
 * @param {number} number
 */
function addLabel(layout, start, top, number) {
  if (top - start.labelled < LABEL_HEIGHT) return;
  start.labelled = top;
  layout.labels.push({ x: GUTTER - 8, y: top + layout.cell / 2, text: String(number), heading: false });
}

/**
 * @param {Dim[]} dims
 * @param {number} block
 */
function headingOf(dims, block) {
  return pointOf(block, dims.slice(0, -2));
}
