/**
 * The grid of ranks, on three canvases: labels below, then the cells, of which only those that changed are drawn, and above
 * the marks: what is selected, where the mouse and the cursor are.
 */

import { element, setText } from "./dom.js";
import { layoutGrid } from "./layout.js";
import { Painter } from "./paint.js";
import { Raster } from "./raster.js";
import { asCount } from "./units.js";

const MANY = 256; // ranks, from which on the grid may be higher
const HEIGHTS = { few: 280, many: 440 }; // pixels
const PADDING = 3; // pixels around the cells, for the marks of those at the edge

export class Grid {
  #store;
  #theme;
  #painter;
  #layout = null;
  #labels = element("canvas");
  #cells = element("canvas", { class: "meshbook-cells" });
  #marks = element("canvas", { class: "meshbook-marks" });
  #raster = new Raster(this.#cells);
  #caption = element("div", { class: "meshbook-caption" });
  #scale = 1; // device pixels in one of CSS
  #resized = new ResizeObserver(() => this.#arrange());
  cursor = null; // the rank that the keyboard is at
  hovered = null;
  band = null; // {left, top, right, bottom} while ranks are marked with the mouse

  constructor({ store, theme }) {
    this.#store = store;
    this.#theme = theme;
    this.#painter = new Painter(theme);
    this.surface = element("div", { class: "meshbook-surface" }, this.#labels, this.#cells, this.#marks);
    this.scroller = element("div", { class: "meshbook-grid", tabindex: 0 }, this.surface);
    this.element = element("div", { class: "meshbook-grid-frame" }, this.#caption, this.scroller);
    this.#resized.observe(this.scroller);
  }

  /** Where the cells are, or null before the first state. */
  get layout() {
    return this.#layout;
  }

  update(changed) {
    if (changed.has("mesh")) this.#arrange();
    else if (changed.has("theme")) this.#restyle();
    else this.#drawCells();
    if (changed.has("selected") || changed.has("marks") || changed.has("mesh")) this.drawMarks();
  }

  /** The point of a mouse event in the pixels of the layout. */
  pointOf(event) {
    const box = this.surface.getBoundingClientRect();
    return { x: event.clientX - box.left - PADDING, y: event.clientY - box.top - PADDING };
  }

  /** The box of a rank's cell, in the pixels of the window. */
  boxOf(rank) {
    const box = this.surface.getBoundingClientRect();
    const { lefts, tops, cell } = this.#layout;
    return new DOMRect(box.left + PADDING + lefts[rank], box.top + PADDING + tops[rank], cell, cell);
  }

  /** Scrolls so that a rank's cell is in view. */
  reveal(rank) {
    const top = this.#layout.tops[rank];
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + this.#layout.cell > scrollTop + clientHeight)
      this.scroller.scrollTop = top + 2 * this.#layout.cell - clientHeight;
  }

  drawMarks() {
    if (this.#layout === null) return;
    const drawing = this.#cleared(this.#marks);
    drawing.scale(this.#scale, this.#scale);
    drawing.translate(PADDING, PADDING);
    this.#outline(drawing, this.#store.selectedRanks, "accent", 2);
    if (this.hovered !== null) this.#outline(drawing, [this.hovered], "text", 1);
    if (this.cursor !== null && this.scroller.matches(":focus"))
      this.#outline(drawing, [this.cursor], "text", 2, [4, 2]);
    if (this.band !== null) this.#drawBand(drawing);
    drawing.resetTransform();
  }

  dispose() {
    this.#resized.disconnect();
  }

  #arrange() {
    const { mesh, size } = this.#store;
    const width = this.scroller.clientWidth - 2 * PADDING;
    if (mesh === null || width <= 0) return;
    this.#layout = layoutGrid(mesh.dims, width, size > MANY ? HEIGHTS.many : HEIGHTS.few);
    setText(this.#caption, captionOf(mesh.dims, this.#layout.rows));
    if (this.cursor !== null && this.cursor >= size) this.cursor = null;
    this.hovered = null;
    this.#scale = window.devicePixelRatio || 1;
    for (const canvas of [this.#labels, this.#cells, this.#marks]) this.#sizeCanvas(canvas);
    this.#restyle();
  }

  #sizeCanvas(canvas) {
    const width = Math.ceil(this.#layout.width) + 2 * PADDING;
    const height = Math.ceil(this.#layout.height) + 2 * PADDING;
    canvas.width = Math.round(width * this.#scale);
    canvas.height = Math.round(height * this.#scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }

  #restyle() {
    if (this.#layout === null) return;
    const side = Math.max(1, Math.round(this.#layout.cell * this.#scale));
    this.#painter.reset(side);
    this.#raster.reset(side);
    this.#store.takeDirty();
    this.#drawLabels();
    this.#drawAll();
    this.drawMarks();
  }

  #drawCells() {
    if (this.#layout === null) return;
    const dirty = this.#store.takeDirty();
    if (dirty === "all") this.#drawAll();
    else this.#raster.draw(this.#squares(dirty), dirty.size);
  }

  #drawAll() {
    this.#raster.draw(this.#squares(this.#store.states.keys()), this.#store.size);
  }

  *#squares(ranks) {
    const { lefts, tops } = this.#layout;
    for (const rank of ranks) {
      const x = Math.round((lefts[rank] + PADDING) * this.#scale);
      const y = Math.round((tops[rank] + PADDING) * this.#scale);
      yield { x, y, pixels: this.#painter.pixelsOf(this.#store, rank) };
    }
  }

  #drawLabels() {
    const drawing = this.#cleared(this.#labels);
    drawing.scale(this.#scale, this.#scale);
    drawing.translate(PADDING, PADDING);
    drawing.textBaseline = "middle";
    for (const { x, y, text, heading } of this.#layout.labels) {
      drawing.font = `${heading ? "600 " : ""}11px ${this.#theme.colour("font")}`;
      drawing.fillStyle = this.#theme.colour("quiet");
      drawing.textAlign = heading ? "left" : "right";
      drawing.fillText(text, x, y + 0.5);
    }
    drawing.resetTransform();
  }

  #outline(drawing, ranks, colour, width, dashes = []) {
    const { lefts, tops, cell } = this.#layout;
    const out = cell >= 10 ? 1.5 : 0.5;
    drawing.strokeStyle = this.#theme.colour(colour);
    drawing.lineWidth = cell >= 10 ? width : 1;
    drawing.setLineDash(dashes);
    drawing.beginPath();
    for (const rank of ranks)
      drawing.roundRect(lefts[rank] - out, tops[rank] - out, cell + 2 * out, cell + 2 * out, cell * 0.2);
    drawing.stroke();
  }

  #drawBand(drawing) {
    const { left, top, right, bottom } = this.band;
    drawing.fillStyle = drawing.strokeStyle = this.#theme.colour("accent");
    drawing.globalAlpha = 0.12;
    drawing.fillRect(left, top, right - left, bottom - top);
    drawing.globalAlpha = 1;
    drawing.lineWidth = 1;
    drawing.setLineDash([]);
    drawing.strokeRect(left, top, right - left, bottom - top);
  }

  #cleared(canvas) {
    const drawing = canvas.getContext("2d");
    drawing.resetTransform();
    drawing.clearRect(0, 0, canvas.width, canvas.height);
    return drawing;
  }
}

/** How the grid is to be read: `16 hosts down, 8 gpus across`, or `8 gpus to a row, 11 hosts to a line`. */
function captionOf(dims, rows) {
  const words = dims.map(([name, size]) => `${asCount(size)} ${name}`);
  if (dims.length < 2) return words.join("");
  const places = [`${words.at(-2)} down`, `${words.at(-1)} across`];
  const flowing = [`${words.at(-1)} to a row`, `${rows} ${dims.at(-2)[0]} to a line`];
  return [...words.slice(0, -2), ...(rows > 1 ? flowing : places)].join(", ");
}
