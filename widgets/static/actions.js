// @ts-check
/** The buttons that act on the selected ranks, or on all. Buttons that destroy something ask for a second press. */

import { element, setAttribute, setText } from "./dom.js";
import { messageOf } from "./errors.js";

/**
 * @import { Change, Changed, Context } from "./context.d.ts"
 * @import { Action, CellSection, MeshSection } from "./protocol.d.ts"
 */

const CONFIRM_WITHIN = 4000; // milliseconds in which a second press confirms

/**
 * @typedef {object} ActionKind
 * @property {Action} name
 * @property {string} title
 * @property {string} hint
 * @property {number} seconds how long to wait for the reply
 * @property {boolean} [confirms]
 */

/** @type {ActionKind[]} */
const ACTIONS = [
  {
    name: "interrupt",
    title: "Interrupt",
    hint: "Send Ctrl-C to the ranks: the cell ends with KeyboardInterrupt. Also frees ranks that are stuck",
    seconds: 30,
  },
  {
    name: "kill",
    title: "Kill",
    hint: "Kill the processes; Heal restarts them",
    seconds: 30,
    confirms: true,
  },
  {
    name: "restart",
    title: "Restart",
    hint: "Restart the processes; their memory is lost",
    seconds: 300,
    confirms: true,
  },
  { name: "heal", title: "Heal", hint: "Restart the ranks that are dead", seconds: 300 },
  { name: "stacks", title: "Stacks", hint: "Show where each rank is now", seconds: 60 },
  { name: "profile", title: "Profile", hint: "Sample for a few seconds where ranks spend time", seconds: 120 },
];
/** @type {Change[]} */
const SHOWS = ["mesh", "cell", "counts", "selected"];

/**
 * The reason, for people, why an action cannot be used now; null if it can.
 *
 * @param {Action} action
 * @param {{mesh: MeshSection | null, cell: CellSection | null, counts: Record<string, number>}} store
 */
export function reasonDisabled(action, { mesh, cell, counts }) {
  if (mesh === null) return "waiting for the kernel";
  if (!mesh.alive) return "the mesh is down";
  if (action === "interrupt" && cell === null && !counts.stuck) return "no cell is running";
  if (action === "interrupt" && cell !== null && !cell.interruptible) return "this cell cannot be interrupted";
  if (action === "heal" && !counts.dead) return "no rank is dead";
  return null;
}

/** @param {Context} context */
export function makeActions(context) {
  const buttons = ACTIONS.map((action) => new ActionButton(action, context));
  return {
    element: element(
      "div",
      { class: "meshbook-actions", role: "group", "aria-label": "Actions" },
      ...buttons.map((button) => button.element),
    ),
    /** @param {Changed} changed */
    update(changed) {
      if (SHOWS.some((name) => changed.has(name))) for (const button of buttons) button.update();
    },
    dispose() {
      for (const button of buttons) button.dispose();
    },
  };
}

class ActionButton {
  #action;
  #context;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer; // runs while the button waits for the second press
  #pendingRanks = ""; // those that the second press is for
  #isBusy = false;
  #withdrawQuestion = () => {};

  /**
   * @param {ActionKind} action
   * @param {Context} context
   */
  constructor(action, context) {
    this.#action = action;
    this.#context = context;
    this.element = element("button", {
      type: "button",
      class: "meshbook-button",
      dataset: { action: action.name },
      on: {
        click: (event) => this.#press(event.detail > 1),
        blur: () => this.#stopConfirming(),
        keydown: (event) => this.#key(event),
      },
    });
    this.update();
  }

  update() {
    const reason = this.#reason();
    const isOther = this.#pendingRanks !== this.#context.selection.text; // another view has selected other ranks
    if (this.#timer && (reason !== null || isOther)) return this.#stopConfirming();
    setText(this.element, this.#title());
    // Not `disabled`: that would take the button from the keyboard, and from people who want to know the reason.
    setAttribute(this.element, "aria-disabled", reason !== null);
    setAttribute(this.element, "data-confirming", this.#timer !== undefined);
    setAttribute(this.element, "data-busy", this.#isBusy);
    setAttribute(this.element, "title", reason === null ? this.#action.hint : `${this.#action.title}: ${reason}`);
  }

  dispose() {
    clearTimeout(this.#timer);
  }

  #reason() {
    return this.#isBusy ? "in progress" : reasonDisabled(this.#action.name, this.#context.store);
  }

  #title() {
    if (this.#timer) return `${this.#action.title} ${this.#targetText()}?`;
    return this.#isBusy ? `${this.#action.title}…` : this.#action.title;
  }

  #targetText() {
    const { selection, store } = this.#context;
    if (selection.size === 1) return `rank ${selection.text}`;
    if (selection.size > 0) return `${selection.size} ranks`;
    return store.size === 1 ? "the rank" : `all ${store.size}`;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key === "Escape") this.#stopConfirming();
    if (event.repeat) event.preventDefault(); // a key that is held down would press again, and confirm
  }

  /** @param {boolean} isDouble */
  #press(isDouble) {
    const reason = this.#reason();
    if (isDouble && this.#action.confirms) return; // a double click leaves no time to read the question
    if (reason !== null) this.#context.announce(`${this.#action.title}: ${reason}`);
    else if (this.#action.confirms && !this.#timer) this.#ask();
    else void this.#act();
  }

  #ask() {
    this.#pendingRanks = this.#context.selection.text;
    this.#timer = setTimeout(() => this.#stopConfirming(), CONFIRM_WITHIN);
    const question = `Press again to ${this.#action.name} ${this.#targetText()}; Escape cancels`;
    this.#withdrawQuestion = this.#context.announce(question);
    this.update();
  }

  #stopConfirming() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#withdrawQuestion();
    this.update();
  }

  async #act() {
    const { request, selection, store, announce, show } = this.#context;
    const { name, title, seconds } = this.#action;
    this.#isBusy = true;
    this.#stopConfirming();
    announce(`${title}: ${this.#targetText()}…`);
    try {
      const fields = { action: name, sel: selection.sel, cell: store.cell?.number ?? null };
      const { content } = await request("act", fields, { seconds });
      announce(content.text || `${title}: done`);
      if (name === "stacks") show("Stacks");
      if (content.html) this.#context.showProfile?.(content.html);
    } catch (error) {
      announce(`${title}: ${messageOf(error)}`, "error");
    }
    this.#isBusy = false;
    this.update();
  }
}
