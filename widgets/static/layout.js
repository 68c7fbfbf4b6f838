/**
 * Where the cell of each rank lies, by the dimensions of the mesh. Pure.
 *
 * The last dimension runs across, as a row; the one before it down. Where that would be too high, several rows stand side by
 * side on a line, which are read like words. Dimensions before those two are blocks with a heading. A mesh of one dimension is
 * wrapped like text.
 */

const LARGEST = 40; // pixels of a cell's side
const SMALLEST = 5;
const ROOMY = 18; // pixels of a cell's side, down to which each row keeps a line of its own
const GUTTER = 34; // pixels at the left for the labels of lines
const LABEL_HEIGHT = 13;
const HEADING_HEIGHT = 20;

/**
 * The largest cells with which all ranks fit into `width` and `height`; the smallest if none do, and then it is higher.
 *
 * Gives {cell, gap, rows, stride, lefts, tops, labels: [{x, y, text, heading}], width, height}: pixels; `lefts` and `tops` by
 * rank, `rows` lie side by side on a line, `stride` ranks between one and the one below it.
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

/** The rank whose cell is at a point, or null. O(n) in ranks, 4096 take some microseconds. */
export function rankAt(layout, x, y) {
  const reach = layout.cell + layout.gap;
  const found = layout.lefts.findIndex((left, rank) => within(x, left, reach) && within(y, layout.tops[rank], reach));
  return found < 0 ? null : found;
}

/** The ranks whose cells a rectangle touches. */
export function ranksIn(layout, { left, top, right, bottom }) {
  const ranks = [];
  for (let rank = 0; rank < layout.lefts.length; rank += 1) {
    const [x, y] = [layout.lefts[rank], layout.tops[rank]];
    if (x <= right && x + layout.cell >= left && y <= bottom && y + layout.cell >= top) ranks.push(rank);
  }
  return ranks;
}

function within(value, start, length) {
  return value >= start && value < start + length;
}

/** How cells of this size would lie: the fewest rows to a line that keep to the height, or as many as may be. */
function planWith(cell, dims, { width, height, rows: limit }) {
  const gap = cell >= 16 ? 4 : cell >= 10 ? 3 : cell >= 7 ? 2 : 1;
  const pitch = cell + gap;
  const between = Math.min(pitch, 16); // two rows of a line
  const room = Math.max(1, Math.floor((width - GUTTER + gap) / pitch));
  const across = cellsAcross(lengthOf(dims), room);
  const pieces = Math.ceil(lengthOf(dims) / across); // lines that a row is wrapped into
  const most = Math.min(limit, pieces > 1 ? 1 : Math.floor((width - GUTTER + between) / (across * pitch + between)));
  const heightWith = (rows) => blocksOf(dims) * (headingHeight(dims) + Math.ceil(rowsOf(dims) / rows) * pieces * pitch);
  let rows = 1;
  while (rows < most && heightWith(rows) > height) rows += 1;
  return { dims, cell, gap, pitch, between, across, rows, fits: heightWith(rows) <= height };
}

function lengthOf(dims) {
  return dims.length ? dims.at(-1)[1] : 1;
}

function rowsOf(dims) {
  return dims.length > 1 ? dims.at(-2)[1] : 1;
}

function blocksOf(dims) {
  return dims.slice(0, -2).reduce((product, [, length]) => product * length, 1);
}

function headingHeight(dims) {
  return dims.length > 2 ? HEADING_HEIGHT : 0;
}

/** How many cells a line of one row has: all of it, or where it is wider than there is room, a round number. */
function cellsAcross(length, room) {
  if (length <= room) return length;
  const round = [64, 32, 16, 8].find((multiple) => room >= multiple) ?? 1;
  return Math.floor(room / round) * round;
}

function place(plan) {
  const { dims, cell, gap, pitch, across, rows } = plan;
  const size = blocksOf(dims) * rowsOf(dims) * lengthOf(dims);
  const stride = across < lengthOf(dims) ? across : across * rows;
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

/** Places the rows of a block below `top`; where the next block begins. */
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

function placeRow(layout, { dims, pitch, across, between }, { first, column, top, start }) {
  const left = GUTTER + column * (across * pitch + between);
  for (let index = 0; index < lengthOf(dims); index += 1) {
    const lineTop = top + Math.floor(index / across) * pitch;
    if (dims.length < 2 && index % across === 0) addLabel(layout, start, lineTop, index);
    layout.lefts[first + index] = left + (index % across) * pitch;
    layout.tops[first + index] = lineTop;
  }
}

/** Labels a line, unless the label would run into the one above. */
function addLabel(layout, start, top, number) {
  if (top - start.labelled < LABEL_HEIGHT) return;
  start.labelled = top;
  layout.labels.push({ x: GUTTER - 8, y: top + layout.cell / 2, text: String(number), heading: false });
}

function headingOf(dims, block) {
  const parts = [];
  let rest = block;
  for (const [name, size] of dims.slice(0, -2).reverse()) {
    parts.unshift(`${name} ${rest % size}`);
    rest = Math.floor(rest / size);
  }
  return parts.join(", ");
}
