/** Draws lanes of a timeline onto a canvas: those that are in view, in colours and patterns. */

import { firstAfter, KINDS, ticksOf, tickText } from "./timescale.js";

export const AXIS_HEIGHT = 22;
export const LABEL_WIDTH = 52;
const PATTERNED_FROM = 7; // pixels of a lane: in lower ones a pattern is noise
const LABEL_HEIGHT = 13;

/** How high each of so many lanes is, in a view so high: all of them if that is legible. */
export function laneHeightOf(count, height) {
  return Math.max(4, Math.min(22, Math.floor((height - AXIS_HEIGHT) / Math.max(1, count))));
}

/** The fill of each kind: its colour, and a pattern of its own for who does not tell colours apart. */
export function makeFills(context, theme) {
  const fills = {};
  for (const { name } of KINDS) {
    const colour = theme.colour(`lane-${name}`);
    fills[name] = { plain: colour, patterned: patternOf(context, name, colour, theme.colour("ground")) };
  }
  return fills;
}

const PATTERNS = {
  collective: (pen) => [0, 8].forEach((at) => line(pen, at - 4, 8, at + 4, 0)), // slanted
  waiting: (pen) => dot(pen, 4, 4),
  transfer: (pen) => line(pen, 0, 4, 8, 4), // level
};

function patternOf(context, name, colour, ground) {
  if (!(name in PATTERNS)) return colour;
  const tile = new OffscreenCanvas(8, 8);
  const pen = tile.getContext("2d");
  pen.fillStyle = colour;
  pen.fillRect(0, 0, 8, 8);
  pen.fillStyle = pen.strokeStyle = ground;
  pen.globalAlpha = 0.4;
  pen.lineWidth = 1.5;
  PATTERNS[name](pen);
  return context.createPattern(tile, "repeat");
}

function line(pen, fromX, fromY, toX, toY) {
  pen.beginPath();
  pen.moveTo(fromX, fromY);
  pen.lineTo(toX, toY);
  pen.stroke();
}

function dot(pen, x, y) {
  pen.beginPath();
  pen.arc(x, y, 1.6, 0, 2 * Math.PI);
  pen.fill();
}

/**
 * Draws all. `view` has `lanes` (in order), `scale`, `width`, `height` and `top` (how far the lanes are scrolled), all
 * in CSS pixels, `laneHeight`, `isSelected(rank)`, `cursor` (the index of a lane, or -1), `pointed` (a time, or null), and
 * `brush` ([from, to] in times, or null).
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

function drawGround(pen, view, y, theme, isCursor) {
  pen.globalAlpha = isCursor ? 0.25 : 0.12;
  pen.fillStyle = theme.colour("accent");
  pen.fillRect(0, y, view.width, view.laneHeight);
  pen.globalAlpha = 1;
}

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

function drawLabel(pen, lane, y, theme) {
  pen.fillStyle = theme.colour("quiet");
  pen.font = "11px sans-serif";
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  pen.fillText(String(lane.rank), LABEL_WIDTH - 8, y);
}

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

function drawBrush(pen, { scale, width, height, brush }, theme) {
  if (!brush) return;
  const [from, to] = brush.map((time) => LABEL_WIDTH + scale.placeOf(time, width - LABEL_WIDTH));
  pen.globalAlpha = 0.2;
  pen.fillStyle = theme.colour("accent");
  pen.fillRect(Math.min(from, to), AXIS_HEIGHT, Math.abs(to - from), height);
  pen.globalAlpha = 1;
}
