/** Panels in tabs, of which one is shown and told of changes. Arrow keys move between tabs, as people expect of them. */

import { element, newId, setAttribute, setText } from "./dom.js";

export class Tabs {
  #entries;
  #current = null;

  constructor(panels) {
    this.#entries = panels.map((panel) => this.#entry(panel));
    this.bar = element("div", {
      class: "meshbook-tabs",
      role: "tablist",
      "aria-label": "Panels",
      on: { keydown: this.#move },
    });
    this.bar.append(...this.#entries.map(({ tab }) => tab));
    this.element = element("section", { class: "meshbook-panels" }, this.bar, ...this.#entries.map(({ page }) => page));
    if (this.#entries.length) this.#show(this.#entries[0]);
  }

  /** Brings the panel of this title into view, and the focus to it. */
  show(title) {
    const entry = this.#entries.find(({ panel }) => panel.title === title);
    if (!entry) return;
    this.#show(entry);
    (entry.page.querySelector("[data-focus]") ?? entry.page).focus();
    this.element.scrollIntoView({ block: "nearest" });
  }

  update(changed) {
    for (const { panel, badge } of this.#entries) setText(badge, panel.badge?.() ?? "");
    this.#current?.panel.update(changed);
  }

  dispose() {
    for (const { panel } of this.#entries) panel.dispose?.();
  }

  #entry(panel) {
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

  #show(entry) {
    this.#current = entry;
    for (const { tab, page } of this.#entries) {
      setAttribute(page, "hidden", page !== entry.page);
      setAttribute(tab, "aria-selected", String(tab === entry.tab));
      tab.tabIndex = tab === entry.tab ? 0 : -1;
    }
    entry.panel.update(new Set(["shown"]));
  }

  #move = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const place = this.#entries.indexOf(this.#current) + step;
    const next = this.#entries.at(place % this.#entries.length);
    this.#show(next);
    next.tab.focus();
  };
}
