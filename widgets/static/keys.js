/**
 * Keys that are pressed in the dashboard are its own: JupyterLab would take "d d" for the deletion of the cell.
 *
 * Lumino leaves out what has this attribute, but looks for it only from the element that has the focus. With Ctrl or Cmd the
 * keys stay the front end's, as for saving.
 */

const ATTRIBUTE = "data-lm-suppress-shortcuts";

/** Keeps the keys of all that is in `root` from the front end's shortcuts. */
export function keepKeys(root) {
  root.addEventListener("focusin", ({ target }) => target.setAttribute(ATTRIBUTE, "true"));
  root.addEventListener("keydown", letThrough, { capture: true });
}

/** JupyterLab hears of a key after the page has: so the attribute is away for that long. */
function letThrough({ target, ctrlKey, metaKey }) {
  if (!ctrlKey && !metaKey) return;
  target.removeAttribute(ATTRIBUTE);
  setTimeout(() => target.setAttribute(ATTRIBUTE, "true"));
}
