// @ts-check
/** The colours of the page for drawing on a canvas. The style sheet defines them all. */

/** Follows the theme of the front end in which `root` is shown. Calls `changed()` after each change. */
export class Theme {
  #root;
  #changed;
  /** @type {Map<string, string>} */
  #known = new Map();
  #observer = new MutationObserver(() => this.#read());
  #preference = matchMedia("(prefers-color-scheme: dark)");
  #ground = "";

  /**
   * @param {HTMLElement} root
   * @param {() => void} changed
   */
  constructor(root, changed) {
    this.#root = root;
    this.#changed = changed;
  }

  start() {
    // JupyterLab and Notebook 7 name their theme on the body, VS Code in its classes and style, Colab on the root.
    for (const place of [document.body, document.documentElement]) this.#observer.observe(place, { attributes: true });
    this.#preference.addEventListener("change", this.#read);
    this.#read();
  }

  stop() {
    this.#observer.disconnect();
    this.#preference.removeEventListener("change", this.#read);
  }

  /**
   * The colour with this name in the style sheet: `colour("state-running")` is `--meshbook-state-running`.
   *
   * @param {string} name
   */
  colour(name) {
    const colour =
      this.#known.get(name) || getComputedStyle(this.#root).getPropertyValue(`--meshbook-${name}`).trim() || "#888";
    this.#known.set(name, colour);
    return colour;
  }

  #read = () => {
    const ground = getComputedStyle(this.#root).backgroundColor;
    if (ground === this.#ground) return;
    this.#ground = ground;
    this.#root.dataset.theme = isDark(ground) ? "dark" : "light";
    this.#known.clear();
    this.#changed();
  };
}

/**
 * Whether `rgb(17, 17, 17)` is nearer to black than to white, by Rec. 709 luma.
 *
 * @param {string} colour
 */
function isDark(colour) {
  const [red = 255, green = 255, blue = 255] = (colour.match(/[\d.]+/g) ?? []).map(Number);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 128;
}
