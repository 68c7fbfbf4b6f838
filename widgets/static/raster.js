/** A canvas whose pixels are squares that are copied into it, each at a place of its own. */

const FEW = 200; // squares, up to which only they are handed to the canvas, and not all of it

export class Raster {
  #drawing;
  #image = null;
  #pixels = null; // of the image, a number each
  #side = 0;

  constructor(canvas) {
    this.#drawing = canvas.getContext("2d");
  }

  /** Begins anew, for squares of this side; the canvas has its size. Device pixels. */
  reset(side) {
    const { width, height } = this.#drawing.canvas;
    this.#image = this.#drawing.createImageData(width, height);
    this.#pixels = new Uint32Array(this.#image.data.buffer);
    this.#side = side;
  }

  /** Draws squares: `squares` has one by one {x, y, pixels}, and there are `count`. */
  draw(squares, count) {
    const corners = [];
    for (const { x, y, pixels } of squares) {
      this.#copy(x, y, pixels);
      if (count <= FEW) corners.push([x, y]);
    }
    if (count > FEW) this.#drawing.putImageData(this.#image, 0, 0);
    for (const [x, y] of corners) this.#drawing.putImageData(this.#image, 0, 0, x, y, this.#side, this.#side);
  }

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
