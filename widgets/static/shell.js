// @ts-check
/** The layout of the page, and the updates of its parts. */

import { makeActions } from "./actions.js";
import { element, setAttribute, setText } from "./dom.js";
import { Grid } from "./grid.js";
import { makeHeader } from "./header.js";
import { makeHosts } from "./hosts.js";
import { makeSelectable } from "./pointing.js";
import { Tabs } from "./tabs.js";
import { makeToolbar } from "./toolbar.js";
import { Tooltip } from "./tooltip.js";
import { makeWorst } from "./worst.js";

/**
 * @import { Announce, Change, Changed, Context, Panel, Part } from "./context.d.ts"
 * @import { Store } from "./store.js"
 */

const MANY = 1024; // ranks, from which on the grid gets the full width
const WAITING = "Waiting for the kernel…";

/**
 * @param {Context} context
 * @param {((context: Context) => Panel)[]} panels
 */
export function makeShell(context, panels) {
  const tabs = new Tabs(panels.map((makePanel) => makePanel(context)));
  const header = makeHeader(context);
  const actions = makeActions(context);
  const toolbar = makeToolbar(context);
  const grid = new Grid(context);
  const tooltip = new Tooltip(context, grid);
  const side = [makeWorst(context), makeHosts(context)];
  const notices = makeNotices(context.store);
  makeSelectable(grid, context, { hover: (rank) => tooltip.show(rank), typeSelector: () => toolbar.focusField() });

  const control = element("div", { class: "meshbook-control" }, header.cell, actions.element);
  const ranks = element(
    "section",
    { class: "meshbook-ranks", "aria-label": "Ranks" },
    toolbar.element,
    grid.element,
    toolbar.legend,
  );
  const aside = element("aside", { class: "meshbook-side" }, ...side.map((each) => each.element));
  const main = element("div", { class: "meshbook-main" }, ranks, aside);
  context.root.append(header.element, control, notices.element, main, tabs.element, notices.status, tooltip.element);
  setAttribute(context.root, "data-loading", true);

  /** @type {Part[]} */
  const parts = [notices, header, actions, toolbar, grid, ...side, tabs];
  return {
    /** @param {string} title */
    show: (title) => tabs.show(title),
    announce: notices.announce,
    /** @param {number | null} seconds */
    silent(seconds) {
      setAttribute(context.root, "data-silent", seconds !== null);
      notices.silent(seconds);
    },
    /** @param {Set<Change>} changed */
    update(changed) {
      if (context.store.mesh === null) return;
      setAttribute(context.root, "data-loading", false);
      setAttribute(context.root, "data-down", !context.store.mesh.alive);
      setAttribute(context.root, "data-many", context.store.size > MANY);
      for (const part of parts) part.update(changed);
      tooltip.update();
    },
    dispose() {
      for (const part of [...parts, tooltip]) part.dispose?.();
    },
  };
}

/**
 * The layout of a view that shows one panel alone.
 *
 * @param {Context} context
 * @param {Panel} panel
 */
export function makeChartsShell(context, panel) {
  const notices = makeNotices(context.store);
  context.root.append(notices.element, panel.element, notices.status);
  setAttribute(context.root, "data-panel", panel.title);
  setAttribute(context.root, "data-loading", true);
  let isShown = false;
  return {
    show() {},
    announce: notices.announce,
    /** @param {number | null} seconds */
    silent(seconds) {
      setAttribute(context.root, "data-silent", seconds !== null);
      notices.silent(seconds);
    },
    /** @param {Set<Change>} changed */
    update(changed) {
      if (context.store.mesh === null) return;
      setAttribute(context.root, "data-loading", false);
      if (!isShown) changed.add("shown");
      isShown = true;
      notices.update(changed);
      panel.update(changed);
    },
    dispose: () => panel.dispose?.(),
  };
}

/**
 * The notices: a banner about the whole mesh, and a status line at the foot about what a person did.
 *
 * @param {Store} store
 */
function makeNotices(store) {
  const banner = element("div", { class: "meshbook-banner", role: "alert" }, WAITING);
  const status = element("div", { class: "meshbook-status", role: "status", "aria-live": "polite" });
  /** @type {string | null} */
  let silence = null;
  /** @type {number | null} */
  let cell = null; // the one that ran last
  const show = () => {
    const text = silence ?? bannerText(store);
    setText(banner, text);
    setAttribute(banner, "hidden", text === "");
  };
  return {
    element: banner,
    status,
    /** @param {Changed} changed */
    update(changed) {
      if (changed.has("mesh")) show();
      if (store.cell !== null && store.cell.number !== cell) {
        cell = store.cell.number;
        setText(status, ""); // the text was about an earlier cell
      }
    },
    /** @param {number | null} seconds */
    silent(seconds) {
      silence = seconds === null ? null : silenceText(seconds);
      show();
    },
    /** @type {Announce} */
    announce(text, kind) {
      setText(status, text);
      status.dataset.kind = kind;
      return () => {
        if (status.textContent === text) setText(status, "");
      };
    },
  };
}

/** @param {Store} store */
function bannerText({ mesh }) {
  if (mesh === null) return WAITING;
  return mesh.alive ? "" : "The mesh is down. %mesh up starts another one.";
}

/** @param {number} seconds */
function silenceText(seconds) {
  const shown = Math.floor(seconds / 5) * 5; // a screen reader reads each new number aloud
  return `No answer from the kernel for ${shown} s. It may be busy. If it was restarted, run %mesh dash again.`;
}
