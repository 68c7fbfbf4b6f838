/** The colours of the page for those who draw on a canvas, and word when they change. The style sheet defines them all. */

/** Follows the theme of the front end that `root` is shown in; `changed()` after each change. */
export class Theme {
  #root;
  #changed;
  #known = new Map();
  #observer = new MutationObserver(() => this.#look());
  #preference = matchMedia("(prefers-color-scheme: dark)");
  #seen = "";

  constructor(root, changed) {
    this.#root = root;
    this.#changed = changed;
  }

  start() {
    // JupyterLab and Notebook 7 name their theme on the body, VS Code in its classes and style, Colab on the root.
    for (const place of [document.body, document.documentElement]) this.#observer.observe(place, { attributes: true });
    this.#preference.addEventListener("change", this.#lookLater);
    this.#look();
  }

  stop() {
    this.#observer.disconnect();
    this.#preference.removeEventListener("change", this.#lookLater);
  }

  /** The colour that the style sheet gives this name: `colour("state-running")` is `--meshbook-state-running`. */
  colour(name) {
    if (!this.#known.has(name)) {
      this.#known.set(name, getComputedStyle(this.#root).getPropertyValue(`--meshbook-${name}`).trim() || "#888");
    }
    return this.#known.get(name);
  }

  /** Whether what is drawn stands on a dark ground. */
  get dark() {
    return this.#root.dataset.theme === "dark";
  }

  #lookLater = () => this.#look();

  #look() {
    const ground = getComputedStyle(this.#root).backgroundColor;
    if (ground === this.#seen) return;
    this.#seen = ground;
    this.#root.dataset.theme = isDark(ground) ? "dark" : "light";
    this.#known.clear();
    this.#changed();
  }
}

/** Whether `rgb(17, 17, 17)` is nearer to black than to white, by Rec. 709 luma. */
function isDark(colour) {
  const [red = 255, green = 255, blue = 255] = (colour.match(/[\d.]+/g) ?? []).map(Number);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 128;
}
