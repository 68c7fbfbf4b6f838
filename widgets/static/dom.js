// @ts-check
/** Elements of the page, made in one expression. Text becomes text nodes only: markup in it stays text. */

/** @typedef {string | number | boolean | null} AttributeValue */
/** @typedef {{[K in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[K]) => void}} Listeners */
/**
 * @typedef {{
 *   on?: Listeners,
 *   dataset?: Record<string, string | number>,
 *   style?: Record<string, string | number>,
 *   [attribute: string]: unknown,
 * }} Properties
 */

/**
 * Makes an element. In the properties, `on` has listeners by the name of their event; `dataset` and `style` have their
 * entries; all others are attributes, of which null and false are left out.
 *
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Properties} [properties]
 * @param {...(Node | string | null)} children null is left out
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  const { on = {}, dataset = {}, style = {}, ...attributes } = properties;
  for (const [event, listener] of Object.entries(on)) {
    made.addEventListener(event, /** @type {EventListener} */ (listener));
  }
  for (const [name, value] of Object.entries(style)) made.style.setProperty(name, String(value));
  Object.assign(made.dataset, dataset);
  for (const [name, value] of Object.entries(attributes)) {
    setAttribute(made, name, /** @type {AttributeValue} */ (value));
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/**
 * An id for an element, unique on the page: each widget there has modules of its own.
 *
 * @param {string} name
 */
export function newId(name) {
  return `meshbook-${name}-${Math.random().toString(36).slice(2)}`;
}

/**
 * Sets an attribute, or removes it if the value is null or false.
 *
 * @param {Element} target
 * @param {string} name
 * @param {AttributeValue} value
 */
export function setAttribute(target, name, value) {
  const text = value === true ? "" : String(value);
  if (value === null || value === false) target.removeAttribute(name);
  else if (target.getAttribute(name) !== text) target.setAttribute(name, text);
}

/**
 * Writes text only where it differs: a new text node would lose what a person has marked in the old one.
 *
 * @param {Element} target
 * @param {string} text
 */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/**
 * Sets a property of the style only where it differs: otherwise the browser would lay out the page again.
 *
 * @param {HTMLElement} target
 * @param {string} name
 * @param {string} value
 */
export function setStyle(target, name, value) {
  if (target.style.getPropertyValue(name) !== value) target.style.setProperty(name, value);
}
