// @ts-check
/**
 * Keeps the front end from handling keys that are pressed in the dashboard: in JupyterLab "d d" deletes the cell.
 *
 * Lumino ignores elements with this attribute, but checks only from the focused element on. The front end still gets keys
 * with Ctrl or Cmd, as for saving.
 */

const ATTRIBUTE = "data-lm-suppress-shortcuts";

/**
 * Keeps the keys of all elements in `root` from the front end's shortcuts.
 *
 * @param {HTMLElement} root
 */
export function keepKeys(root) {
  root.addEventListener("focusin", ({ target }) => /** @type {Element} */ (target).setAttribute(ATTRIBUTE, "true"));
  root.addEventListener("keydown", allowModified, { capture: true });
}

/**
 * Removes the attribute while JupyterLab handles the key, which is after the page does.
 *
 * @param {KeyboardEvent} event
 */
function allowModified({ target, ctrlKey, metaKey }) {
  if (!ctrlKey && !metaKey) return;
  const focused = /** @type {Element} */ (target);
  focused.removeAttribute(ATTRIBUTE);
  setTimeout(() => focused.setAttribute(ATTRIBUTE, "true"));
}
