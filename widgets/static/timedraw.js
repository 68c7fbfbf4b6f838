// @ts-check
/** Draws the lanes of a timeline that are in view, in colours and patterns. */

import { firstAfter, KINDS, ticksOf, tickText } from "./timescale.js";

/**
 * @import { TimelineLane } from "./protocol.d.ts"
 * @import { Theme } from "./theme.js"
 * @import { BusyState, TimeScale } from "./timescale.js"
 */

/**
 * What the panel and the pointer change.
 *
 * @typedef {object} TimelineView
 * @property {TimelineLane[]} lanes in order
 * @property {TimeScale} scale
 * @property {number} laneHeight CSS pixels
 * @property {number} cursor the index of a lane, or -1
 * @property {number | null} pointed a time
 * @property {[number, number] | null} brush two times
 */
/**
 * The part of the canvas in view, in CSS pixels.
 *
 * @typedef {object} Viewport
 * @property {number} width
 * @property {number} height
 * @property {number} top how far the lanes are scrolled
 * @property {(rank: number) => boolean} isSelected
 */
/** @typedef {string | CanvasPattern} Fill */
/** @typedef {Record<string, {plain: string, patterned: Fill}>} Fills */
/** @typedef {CanvasRenderingContext2D} Pen */

export const AXIS_HEIGHT = 22;
export const LABEL_WIDTH = 52;
const PATTERNED_FROM = 7; // pixels of a lane; in lower lanes a pattern would be noise
const LABEL_HEIGHT = 13;

/**
 * The height of each lane, so that all fit into a view of this height if that stays legible.
 *
 * @param {number} count of lanes
 * @param {number} height
 */
export function laneHeightOf(count, height) {
  return Math.max(4, Math.min(22, Math.floor((height - AXIS_HEIGHT) / Math.max(1, count))));
}

/**
 * The fill of each state: its colour, and a pattern for people who cannot tell the colours apart.
 *
 * @param {Pen} pen
 * @param {Theme} theme
 */
export function makeFills(pen, theme) {
  /** @type {Fills} */
  const fills = {};
  for (const { name } of KINDS) {
    const colour = theme.colour(`lane-${name}`);
    fills[name] = { plain: colour, patterned: patternOf(pen, name, colour, theme.colour("ground")) };
  }
  return fills;
}

/** @type {Partial<Record<BusyState, (tile: OffscreenCanvasRenderingContext2D) => void>>} */
const PATTERNS = {
  // Slanted lines, dots, level lines.
  collective(tile) {
    line(tile, -4, 8, 4, 0);
    line(tile, 4, 8, 12, 0);
  },
  waiting(tile) {
    tile.beginPath();
    tile.arc(4, 4, 1.6, 0, 2 * Math.PI);
    tile.fill();
  },
  transfer: (tile) => line(tile, 0, 4, 8, 4),
};

/**
 * @param {Pen} pen
 * @param {BusyState} name
 * @param {string} colour
 * @param {string} ground
 * @returns {Fill}
 */
function patternOf(pen, name, colour, ground) {
  const canvas = new OffscreenCanvas(8, 8);
  const draw = PATTERNS[name];
  const tile = canvas.getContext("2d");
  if (!draw || !tile) return colour;
  tile.fillStyle = colour;
  tile.fillRect(0, 0, 8, 8);
  tile.fillStyle = ground;
  tile.strokeStyle = ground;
  tile.globalAlpha = 0.4;
  tile.lineWidth = 1.5;
  draw(tile);
  return pen.createPattern(canvas, "repeat") ?? colour;
}

/**
 * @param {OffscreenCanvasRenderingContext2D} tile
 * @param {number} fromX
 * @param {number} fromY
 * @param {number} toX
 * @param {number} toY
 */
function line(tile, fromX, fromY, toX, toY) {
  tile.beginPath();
  tile.moveTo(fromX, fromY);
  tile.lineTo(toX, toY);
  tile.stroke();
}

/**
 * Draws everything.
 *
 * @param {Pen} pen
 * @param {TimelineView & Viewport} view
 * @param {Theme} theme
 * @param {Fills} fills
 */
export function drawTimeline(pen, view, theme, fills) {
  pen.clearRect(0, 0, view.width, view.height);
  pen.save();
  pen.beginPath();
  pen.rect(0, AXIS_HEIGHT, view.width, view.height - AXIS_HEIGHT);
  pen.clip();
  drawLanes(pen, view, theme, fills);
  drawBrush(pen, view, theme);
  pen.restore();
  drawAxis(pen, view, theme);
}

/**
 * @param {Pen} pen
 * @param {TimelineView & Viewport} view
 * @param {Theme} theme
 * @param {Fills} fills
 */
function drawLanes(pen, view, theme, fills) {
  const { lanes, laneHeight, top, height } = view;
  const first = Math.max(0, Math.floor(top / laneHeight));
  const last = Math.min(lanes.length, Math.ceil((top + height - AXIS_HEIGHT) / laneHeight));
  const each = Math.max(1, Math.ceil(LABEL_HEIGHT / laneHeight)); // lanes to a label
  for (let index = first; index < last; index++) {
    const y = AXIS_HEIGHT + index * laneHeight - top;
    if (index === view.cursor || view.isSelected(lanes[index].rank))
      drawGround(pen, view, y, theme, index === view.cursor);
    drawLane(pen, view, lanes[index], y, fills, theme);
    if (index % each === 0) drawLabel(pen, lanes[index], y + laneHeight / 2, theme);
  }
}

/**
 * @param {Pen} pen
 * @param {TimelineView & Viewport} view
 * @param {number} y
 * @param {Theme} theme
 * @param {boolean} isCursor
 */
function drawGround(pen, view, y, theme, isCursor) {
  pen.globalAlpha = isCursor ? 0.25 : 0.12;
  pen.fillStyle = theme.colour("accent");
  pen.fillRect(0, y, view.width, view.laneHeight);
  pen.globalAlpha = 1;
}

/**
 * @param {Pen} pen
 * @param {TimelineView & Viewport} view
 * @param {TimelineLane} lane
 * @param {number} y
 * @param {Fills} fills
 * @param {Theme} theme
 */
function drawLane(pen, { scale, width, laneHeight }, lane, y, fills, theme) {
  const gap = laneHeight >= PATTERNED_FROM ? 1.5 : 0.5;
  const inner = width - LABEL_WIDTH;
  pen.fillStyle = theme.colour("lane-idle");
  pen.fillRect(LABEL_WIDTH, y + laneHeight / 2 - 0.5, inner, 1);
  const how = laneHeight >= PATTERNED_FROM ? "patterned" : "plain";
  for (let at = firstAfter(lane.spans, scale.from); at < lane.spans.length; at++) {
    const [start, end, kind] = lane.spans[at];
    if (start > scale.to) break;
    if (!(kind in fills)) continue;
    const from = Math.max(0, scale.placeOf(start, inner));
    const to = Math.min(inner, scale.placeOf(end, inner));
    pen.fillStyle = fills[kind][how];
    pen.fillRect(LABEL_WIDTH + from, y + gap, Math.max(1, to - from), laneHeight - 2 * gap);
  }
}

/**
 * @param {Pen} pen
 * @param {TimelineLane} lane
 * @param {number} y
 * @param {Theme} theme
 */
function drawLabel(pen, lane, y, theme) {
  pen.fillStyle = theme.colour("quiet");
  pen.font = "11px sans-serif";
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  pen.fillText(String(lane.rank), LABEL_WIDTH - 8, y);
}

/**
 * @param {Pen} pen
 * @param {TimelineView & Viewport} view
 * @param {Theme} theme
 */
function drawAxis(pen, { scale, width, height, pointed }, theme) {
  const inner = width - LABEL_WIDTH;
  const { ticks, step } = ticksOf(scale, inner);
  pen.font = "11px sans-serif";
  pen.textBaseline = "middle";
  for (const tick of ticks) {
    const x = LABEL_WIDTH + scale.placeOf(tick, inner);
    pen.fillStyle = theme.colour("line");
    pen.fillRect(x, AXIS_HEIGHT - 5, 1, height);
    pen.fillStyle = theme.colour("quiet");
    pen.textAlign = x < LABEL_WIDTH + 20 ? "left" : x > width - 24 ? "right" : "center";
    pen.fillText(tickText(tick, step, scale.to), x, 8);
  }
  if (pointed === null) return;
  pen.fillStyle = theme.colour("accent");
  pen.fillRect(LABEL_WIDTH + scale.placeOf(pointed, inner), AXIS_HEIGHT - 5, 1, height);
}

/**
 * @param {Pen} pen
 * @param {TimelineView & Viewport} view
 * @param {Theme} theme
 */
function drawBrush(pen, { scale, width, height, brush }, theme) {
  if (!brush) return;
  const [from, to] = brush.map((time) => LABEL_WIDTH + scale.placeOf(time, width - LABEL_WIDTH));
  pen.globalAlpha = 0.2;
  pen.fillStyle = theme.colour("accent");
  pen.fillRect(Math.min(from, to), AXIS_HEIGHT, Math.abs(to - from), height);
  pen.globalAlpha = 1;
}
