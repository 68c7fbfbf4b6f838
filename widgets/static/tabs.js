// @ts-check
/**
 * Panels in tabs. Only the shown panel is updated. Arrow keys move between tabs, as in other tab lists. The tabs are in one
 * row; a list beside them has those without room.
 */

import { element, newId, setAttribute, setText } from "./dom.js";

/** @import { Changed, Panel } from "./context.d.ts" */

/** @typedef {{panel: Panel, tab: HTMLButtonElement, page: HTMLElement, badge: HTMLElement}} Entry */

/** @type {Record<string, number>} */
const STEPS = { ArrowLeft: -1, ArrowRight: 1 };

const MORE = "More"; // the first entry of the list, while it has not the shown panel

export class Tabs {
  #entries;
  #current;
  #bar;
  #more = /** @type {HTMLSelectElement} */ (
    element("select", {
      class: "meshbook-choice",
      "aria-label": "More panels",
      hidden: true,
      on: { change: () => this.show(this.#more.value) },
    })
  );
  #resized = new ResizeObserver(() => this.#fit());

  /** @param {Panel[]} panels at least one */
  constructor(panels) {
    this.#entries = panels.map((panel) => this.#makeEntry(panel));
    this.#bar = element("div", {
      class: "meshbook-tabs",
      role: "tablist",
      "aria-label": "Panels",
      on: { keydown: this.#move },
    });
    this.#bar.append(...this.#entries.map(({ tab }) => tab));
    const row = element("div", { class: "meshbook-tab-row" }, this.#bar, this.#more);
    this.element = element("section", { class: "meshbook-panels" }, row, ...this.#entries.map(({ page }) => page));
    this.#current = this.#entries[0];
    this.#show(this.#current);
    this.#resized.observe(row);
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
    const before = this.#entries.map(({ badge }) => badge.textContent).join();
    for (const { panel, badge } of this.#entries) setText(badge, panel.badge?.() ?? "");
    if (this.#entries.map(({ badge }) => badge.textContent).join() !== before) this.#fit();
    this.#current.panel.update(changed);
  }

  dispose() {
    this.#resized.disconnect();
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
    this.#showMore();
    entry.panel.update(new Set(["shown"]));
  }

  /** Shows as many tabs as have room, and the others in the list. */
  #fit() {
    for (const { tab } of this.#entries) setAttribute(tab, "hidden", false);
    setAttribute(this.#more, "hidden", true);
    if (this.#bar.scrollWidth > this.#bar.clientWidth) {
      setAttribute(this.#more, "hidden", false);
      for (const { tab } of this.#entries.slice(1).reverse()) {
        if (this.#bar.scrollWidth <= this.#bar.clientWidth) break;
        setAttribute(tab, "hidden", true);
      }
    }
    this.#showMore();
  }

  #showMore() {
    const titles = this.#entries.filter(({ tab }) => tab.hidden).map(({ panel }) => panel.title);
    const chosen = this.#current.tab.hidden ? this.#current.panel.title : MORE;
    const options = (chosen === MORE ? [MORE, ...titles] : titles).map((title) => element("option", {}, title));
    if ([...this.#more.options].map(({ text }) => text).join() !== options.map(({ text }) => text).join())
      this.#more.replaceChildren(...options);
    this.#more.value = chosen;
    setAttribute(this.#more, "data-chosen", chosen !== MORE);
  }

  /** @param {KeyboardEvent} event */
  #move = (event) => {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const shown = this.#entries.filter(({ tab }) => !tab.hidden);
    const next = shown[(shown.indexOf(this.#current) + step + shown.length) % shown.length];
    this.#show(next);
    next.tab.focus();
  };
}
