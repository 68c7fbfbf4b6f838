/** The buttons: what each does to the selected ranks, or to all; those that destroy something ask first, in their place. */

import { element, setAttribute, setText } from "./dom.js";

const ASKS_FOR = 4000; // milliseconds in which a second press confirms
const PATIENCE = { interrupt: 30, kill: 30, restart: 300, heal: 300, stacks: 60, profile: 120 }; // seconds

const ACTIONS = [
  { name: "interrupt", title: "Interrupt", hint: "Ctrl-C on the ranks: the cell ends with KeyboardInterrupt. Frees ranks that are stuck" },
  { name: "kill", title: "Kill", hint: "End the processes at once; heal brings them back", confirms: true },
  {
    name: "restart",
    title: "Restart",
    hint: "New processes in their place; what they had in memory is lost",
    confirms: true,
  },
  { name: "heal", title: "Heal", hint: "Start again those that have died" },
  { name: "stacks", title: "Stacks", hint: "Where each rank is now" },
  { name: "profile", title: "Profile", hint: "Sample for a few seconds what the ranks spend their time on" },
];

/** Why an action makes no sense now, for people; null if it does. Pure. */
function reasonAgainst(action, { mesh, cell, counts }) {
  if (mesh === null) return "nothing is known of the mesh yet";
  if (!mesh.alive) return "the mesh is down";
  if (action === "interrupt" && cell === null && !counts.stuck) return "no cell runs";
  if (action === "interrupt" && cell !== null && !cell.interruptible) return "this cell cannot be interrupted";
  if (action === "heal" && !counts.dead) return "no rank is dead";
  return null;
}

export function makeActions(context) {
  const buttons = ACTIONS.map((action) => new ActionButton(action, context));
  return {
    element: element(
      "div",
      { class: "meshbook-actions", role: "group", "aria-label": "Actions" },
      ...buttons.map((button) => button.element),
    ),
    update(changed) {
      if (["mesh", "cell", "counts", "selected"].some((name) => changed.has(name)))
        buttons.forEach((button) => button.update());
    },
    dispose: () => buttons.forEach((button) => button.dispose()),
  };
}

class ActionButton {
  #action;
  #context;
  #timer = null; // runs while it asks
  #asked = ""; // about which ranks
  #busy = false;
  #recant = () => {}; // takes back what it asks, in the status line

  constructor(action, context) {
    this.#action = action;
    this.#context = context;
    const listeners = {
      click: (event) => this.#press(event.detail > 1),
      blur: () => this.#calm(),
      keydown: (event) => this.#key(event),
    };
    this.element = element("button", {
      type: "button",
      class: "meshbook-button",
      dataset: { action: action.name },
      on: listeners,
    });
    this.update();
  }

  update() {
    const reason = this.#reason();
    const isOther = this.#asked !== this.#context.selection.text; // another view, say, has selected others
    if (this.#timer !== null && (reason !== null || isOther)) return this.#calm();
    setText(this.element, this.#title());
    // Not `disabled`: the keyboard would not reach it any more, nor who asks why.
    setAttribute(this.element, "aria-disabled", reason !== null);
    setAttribute(this.element, "data-asks", this.#timer !== null);
    setAttribute(this.element, "data-busy", this.#busy);
    setAttribute(this.element, "title", reason === null ? this.#action.hint : `${this.#action.title}: ${reason}`);
  }

  dispose() {
    clearTimeout(this.#timer);
  }

  #reason() {
    return this.#busy ? "it is being done" : reasonAgainst(this.#action.name, this.#context.store);
  }

  #title() {
    if (this.#timer !== null) return `${this.#action.title} ${this.#whom()}?`;
    return this.#busy ? `${this.#action.title}…` : this.#action.title;
  }

  #whom() {
    const { selection, store } = this.#context;
    if (selection.size === 1) return `rank ${selection.text}`;
    if (selection.size > 0) return `${selection.size} ranks`;
    return store.size === 1 ? "the rank" : `all ${store.size}`;
  }

  #key(event) {
    if (event.key === "Escape") this.#calm();
    if (event.repeat) event.preventDefault(); // a key that is held down presses again and again, and would confirm
  }

  #press(isDouble) {
    const reason = this.#reason();
    if (isDouble && this.#action.confirms) return; // a double click is no answer to a question that nobody has read
    if (reason !== null) this.#context.announce(`${this.#action.title}: ${reason}`);
    else if (this.#action.confirms && this.#timer === null) this.#ask();
    else this.#act();
  }

  #ask() {
    this.#asked = this.#context.selection.text;
    this.#timer = setTimeout(() => this.#calm(), ASKS_FOR);
    this.#recant = this.#context.announce(`Press again to ${this.#action.name} ${this.#whom()}; Escape leaves it`);
    this.update();
  }

  #calm() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#recant();
    this.update();
  }

  async #act() {
    const { request, selection, store, announce, show } = this.#context;
    const { name, title } = this.#action;
    this.#busy = true;
    this.#calm();
    announce(`${title}: ${this.#whom()}…`);
    try {
      const act = { action: name, sel: selection.sel, cell: store.cell?.number ?? null };
      const { content } = await request("act", act, { seconds: PATIENCE[name] });
      announce(content.text || `${title}: done`);
      if (name === "stacks") show("Stacks");
      if (content.html) this.#context.showProfile?.(content.html);
    } catch (error) {
      announce(`${title}: ${error.message}`, "error");
    }
    this.#busy = false;
    this.update();
  }
}
