// @ts-check
/**
 * The grid of ranks, on three canvases: the labels; above them the cells, of which only changed ones are drawn; on top the
 * marks for the selection, the mouse and the cursor.
 */

import { element, setText } from "./dom.js";
import { captionOf, layoutGrid } from "./layout.js";
import { Painter } from "./paint.js";
import { Raster } from "./raster.js";

/**
 * @import { Changed, Context } from "./context.d.ts"
 * @import { Box, Layout, Spot } from "./layout.js"
 * @import { Dim } from "./protocol.d.ts"
 * @import { Square } from "./raster.js"
 */

const MANY = 256; // ranks, from which on the grid may be higher
const HEIGHTS = { few: 280, many: 440 }; // pixels
const PADDING = 3; // pixels around the cells, for the marks of those at the edge

export class Grid {
  #store;
  #theme;
  #painter;
  /** @type {Layout | null} */
  #layout = null;
  #labels = element("canvas");
  #cells = element("canvas", { class: "meshbook-cells" });
  #marks = element("canvas", { class: "meshbook-marks" });
  #raster = new Raster(this.#cells);
  #caption = element("div", { class: "meshbook-caption" });
  #scale = 1; // device pixels in one of CSS
  #resized = new ResizeObserver(() => this.#arrange());
  /** @type {number | null} the rank that the keyboard has reached */
  cursor = null;
  /** @type {number | null} the rank under the mouse */
  hovered = null;
  /** @type {Box | null} the rectangle that is drawn with the mouse */
  band = null;

  /** @param {Context} context */
  constructor({ store, theme }) {
    this.#store = store;
    this.#theme = theme;
    this.#painter = new Painter(theme);
    this.surface = element("div", { class: "meshbook-surface" }, this.#labels, this.#cells, this.#marks);
    this.scroller = element("div", { class: "meshbook-grid", tabindex: 0 }, this.surface);
    this.element = element("div", { class: "meshbook-grid-frame" }, this.#caption, this.scroller);
    this.#resized.observe(this.scroller);
  }

  /** The places of the cells, or null before the first state. */
  get layout() {
    return this.#layout;
  }

  /** @param {Changed} changed */
  update(changed) {
    if (changed.has("mesh")) this.#arrange();
    else if (changed.has("theme")) this.#restyle();
    else this.#drawCells();
    if (changed.has("selected") || changed.has("marks") || changed.has("mesh")) this.drawMarks();
  }

  /**
   * The point of a mouse event in the pixels of the layout.
   *
   * @param {MouseEvent} event
   * @returns {Spot}
   */
  pointOf(event) {
    const box = this.surface.getBoundingClientRect();
    return { x: event.clientX - box.left - PADDING, y: event.clientY - box.top - PADDING };
  }

  /**
   * The box of a rank's cell in the pixels of the window, or null before the first state.
   *
   * @param {number} rank
   */
  boxOf(rank) {
    if (this.#layout === null) return null;
    const box = this.surface.getBoundingClientRect();
    const { lefts, tops, cell } = this.#layout;
    return new DOMRect(box.left + PADDING + lefts[rank], box.top + PADDING + tops[rank], cell, cell);
  }

  /**
   * Scrolls a rank's cell into view.
   *
   * @param {number} rank
   */
  reveal(rank) {
    if (this.#layout === null) return;
    const { tops, cell } = this.#layout;
    const top = tops[rank];
    const { scrollTop, clientHeight } = this.scroller;
    if (top < scrollTop) this.scroller.scrollTop = top;
    else if (top + cell > scrollTop + clientHeight) this.scroller.scrollTop = top + 2 * cell - clientHeight;
  }

  drawMarks() {
    if (this.#layout === null) return;
    const layout = this.#layout;
    const drawing = this.#cleared(this.#marks);
    drawing.scale(this.#scale, this.#scale);
    drawing.translate(PADDING, PADDING);
    this.#outline(drawing, layout, this.#store.selectedRanks, "accent", 2);
    if (this.hovered !== null) this.#outline(drawing, layout, [this.hovered], "text", 1);
    if (this.cursor !== null && this.scroller.matches(":focus"))
      this.#outline(drawing, layout, [this.cursor], "text", 2, [4, 2]);
    if (this.band !== null) this.#drawBand(drawing, this.band);
    drawing.resetTransform();
  }

  dispose() {
    this.#resized.disconnect();
  }

  #arrange() {
    const { mesh, size } = this.#store;
    if (mesh === null || this.scroller.clientWidth <= 0) return;
    this.#scale = window.devicePixelRatio || 1;
    const height = size > MANY ? HEIGHTS.many : HEIGHTS.few;
    // At first without room for a scroll bar, which a grid that fits does not need.
    this.#layout = this.#layOut(mesh.dims, this.scroller.offsetWidth, height);
    if (this.scroller.clientWidth < this.scroller.offsetWidth)
      this.#layout = this.#layOut(mesh.dims, this.scroller.clientWidth, height);
    setText(this.#caption, captionOf(mesh.dims, this.#layout.rows));
    if (this.cursor !== null && this.cursor >= size) this.cursor = null;
    this.hovered = null;
    this.#restyle();
  }

  /**
   * @param {Dim[]} dims
   * @param {number} width
   * @param {number} height
   */
  #layOut(dims, width, height) {
    const layout = layoutGrid(dims, width - 2 * PADDING, height);
    for (const canvas of [this.#labels, this.#cells, this.#marks]) this.#sizeCanvas(canvas, layout);
    return layout;
  }

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {Layout} layout
   */
  #sizeCanvas(canvas, layout) {
    const width = Math.ceil(layout.width) + 2 * PADDING;
    const height = Math.ceil(layout.height) + 2 * PADDING;
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
    this.#drawLabels(this.#layout);
    this.#drawAll(this.#layout);
    this.drawMarks();
  }

  #drawCells() {
    if (this.#layout === null) return;
    const dirty = this.#store.takeDirty();
    if (dirty === "all") this.#drawAll(this.#layout);
    else this.#raster.draw(this.#squares(this.#layout, dirty), dirty.size);
  }

  /** @param {Layout} layout */
  #drawAll(layout) {
    this.#raster.draw(this.#squares(layout, this.#store.states.keys()), this.#store.size);
  }

  /**
   * @param {Layout} layout
   * @param {Iterable<number>} ranks
   * @returns {Iterable<Square>}
   */
  *#squares({ lefts, tops }, ranks) {
    for (const rank of ranks) {
      const x = Math.round((lefts[rank] + PADDING) * this.#scale);
      const y = Math.round((tops[rank] + PADDING) * this.#scale);
      yield { x, y, pixels: this.#painter.pixelsOf(this.#store, rank) };
    }
  }

  /** @param {Layout} layout */
  #drawLabels({ labels }) {
    const drawing = this.#cleared(this.#labels);
    drawing.scale(this.#scale, this.#scale);
    drawing.translate(PADDING, PADDING);
    drawing.textBaseline = "middle";
    for (const { x, y, text, heading } of labels) {
      drawing.font = `${heading ? "600 " : ""}11px ${this.#theme.colour("font")}`;
      drawing.fillStyle = this.#theme.colour("quiet");
      drawing.textAlign = heading ? "left" : "right";
      drawing.fillText(text, x, y + 0.5);
    }
    drawing.resetTransform();
  }

  /**
   * @param {CanvasRenderingContext2D} drawing
   * @param {Layout} layout
   * @param {Iterable<number>} ranks
   * @param {string} colour
   * @param {number} width
   * @param {number[]} [dashes]
   */
  #outline(drawing, { lefts, tops, cell }, ranks, colour, width, dashes = []) {
    const out = cell >= 10 ? 1.5 : 0.5;
    drawing.strokeStyle = this.#theme.colour(colour);
    drawing.lineWidth = cell >= 10 ? width : 1;
    drawing.setLineDash(dashes);
    drawing.beginPath();
    for (const rank of ranks)
      drawing.roundRect(lefts[rank] - out, tops[rank] - out, cell + 2 * out, cell + 2 * out, cell * 0.2);
    drawing.stroke();
  }

  /**
   * @param {CanvasRenderingContext2D} drawing
   * @param {Box} band
   */
  #drawBand(drawing, { left, top, right, bottom }) {
    drawing.fillStyle = this.#theme.colour("accent");
    drawing.strokeStyle = this.#theme.colour("accent");
    drawing.globalAlpha = 0.12;
    drawing.fillRect(left, top, right - left, bottom - top);
    drawing.globalAlpha = 1;
    drawing.lineWidth = 1;
    drawing.setLineDash([]);
    drawing.strokeRect(left, top, right - left, bottom - top);
  }

  /** @param {HTMLCanvasElement} canvas */
  #cleared(canvas) {
    const drawing = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    drawing.resetTransform();
    drawing.clearRect(0, 0, canvas.width, canvas.height);
    return drawing;
  }
}
