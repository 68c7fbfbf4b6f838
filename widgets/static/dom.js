/** Elements of the page, made in one expression. Text goes in as text nodes only: markup in it stays text. */

/**
 * A new element. Properties: `on` has listeners by the name of their event, `dataset` and `style` their entries;
 * all others are attributes, and those that are null or false are left out.
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  const { on = {}, dataset = {}, style = {}, ...attributes } = properties;
  for (const [event, listener] of Object.entries(on)) made.addEventListener(event, listener);
  for (const [name, value] of Object.entries(style)) made.style.setProperty(name, value);
  Object.assign(made.dataset, dataset);
  for (const [name, value] of Object.entries(attributes)) setAttribute(made, name, value);
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** A name for an element that no other has, whatever else is on the page: each widget there has modules of its own. */
export function newId(name) {
  return `meshbook-${name}-${Math.random().toString(36).slice(2)}`;
}

/** Sets an attribute, or takes it away if the value is null or false. */
export function setAttribute(target, name, value) {
  const text = value === true ? "" : String(value);
  if (value === null || value === false) target.removeAttribute(name);
  else if (target.getAttribute(name) !== text) target.setAttribute(name, text);
}

/** Writes text only where it differs: a node that is written anew loses what a person has marked in it. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** Sets a property of the style, only where it differs: the browser would lay the page out again. */
export function setStyle(target, name, value) {
  if (target.style.getPropertyValue(name) !== value) target.style.setProperty(name, value);
}
