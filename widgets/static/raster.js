// @ts-check
/** A canvas whose pixels are squares that are copied into it, each to a place of its own. */

const FEW = 200; // squares, up to which only these squares are copied to the canvas, instead of all of it

/** @typedef {{x: number, y: number, pixels: Uint32Array}} Square in device pixels; a number for each RGBA pixel */

export class Raster {
  #drawing;
  #image = new ImageData(1, 1);
  #pixels = new Uint32Array(1); // of the image
  #side = 0;

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.#drawing = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  }

  /**
   * Starts anew with squares of this side, after the canvas got its size.
   *
   * @param {number} side device pixels
   */
  reset(side) {
    const { width, height } = this.#drawing.canvas;
    this.#image = this.#drawing.createImageData(width, height);
    this.#pixels = new Uint32Array(this.#image.data.buffer);
    this.#side = side;
  }

  /**
   * Draws squares.
   *
   * @param {Iterable<Square>} squares
   * @param {number} count how many there are
   */
  draw(squares, count) {
    const corners = [];
    for (const { x, y, pixels } of squares) {
      this.#copy(x, y, pixels);
      if (count <= FEW) corners.push([x, y]);
    }
    if (count > FEW) this.#drawing.putImageData(this.#image, 0, 0);
    for (const [x, y] of corners) this.#drawing.putImageData(this.#image, 0, 0, x, y, this.#side, this.#side);
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {Uint32Array} pixels
   */
  #copy(x, y, pixels) {
    const { width } = this.#image;
    const side = this.#side;
    for (let line = 0; line < side; line += 1) {
      const from = line * side;
      const to = (y + line) * width + x;
      for (let column = 0; column < side; column += 1) this.#pixels[to + column] = pixels[from + column];
    }
  }
}
