// @ts-check
/** Panels in tabs. Only the shown panel is updated. Arrow keys move between tabs, as in other tab lists. */

import { element, newId, setAttribute, setText } from "./dom.js";

/** @import { Changed, Panel } from "./context.d.ts" */

/** @typedef {{panel: Panel, tab: HTMLButtonElement, page: HTMLElement, badge: HTMLElement}} Entry */

/** @type {Record<string, number>} */
const STEPS = { ArrowLeft: -1, ArrowRight: 1 };

export class Tabs {
  #entries;
  #current;

  /** @param {Panel[]} panels at least one */
  constructor(panels) {
    this.#entries = panels.map((panel) => this.#makeEntry(panel));
    const bar = element("div", {
      class: "meshbook-tabs",
      role: "tablist",
      "aria-label": "Panels",
      on: { keydown: this.#move },
    });
    bar.append(...this.#entries.map(({ tab }) => tab));
    this.element = element("section", { class: "meshbook-panels" }, bar, ...this.#entries.map(({ page }) => page));
    this.#current = this.#entries[0];
    this.#show(this.#current);
  }

  /**
   * Brings a panel into view and moves the focus to it.
   *
   * @param {string} title
   */
  show(title) {
    const entry = this.#entries.find(({ panel }) => panel.title === title);
    if (!entry) return;
    this.#show(entry);
    const target = /** @type {HTMLElement | null} */ (entry.page.querySelector("[data-focus]"));
    (target ?? entry.page).focus();
    this.element.scrollIntoView({ block: "nearest" });
  }

  /** @param {Changed} changed */
  update(changed) {
    for (const { panel, badge } of this.#entries) setText(badge, panel.badge?.() ?? "");
    this.#current.panel.update(changed);
  }

  dispose() {
    for (const { panel } of this.#entries) panel.dispose?.();
  }

  /**
   * @param {Panel} panel
   * @returns {Entry}
   */
  #makeEntry(panel) {
    const id = newId("panel");
    const badge = element("span", { class: "meshbook-badge" });
    const tab = element(
      "button",
      { role: "tab", type: "button", id: `${id}-tab`, "aria-controls": id },
      panel.title,
      badge,
    );
    const page = element(
      "div",
      { role: "tabpanel", id, tabindex: -1, "aria-labelledby": `${id}-tab`, hidden: true },
      panel.element,
    );
    const entry = { panel, tab, page, badge };
    tab.addEventListener("click", () => this.#show(entry));
    return entry;
  }

  /** @param {Entry} entry */
  #show(entry) {
    this.#current = entry;
    for (const { tab, page } of this.#entries) {
      setAttribute(page, "hidden", page !== entry.page);
      setAttribute(tab, "aria-selected", String(tab === entry.tab));
      tab.tabIndex = tab === entry.tab ? 0 : -1;
    }
    entry.panel.update(new Set(["shown"]));
  }

  /** @param {KeyboardEvent} event */
  #move = (event) => {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const index = this.#entries.indexOf(this.#current) + step + this.#entries.length;
    const next = this.#entries[index % this.#entries.length];
    this.#show(next);
    next.tab.focus();
  };
}
