/** How the parts of the dashboard lie on the page, and who is told of a change. */

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

const MANY = 1024; // ranks, from which on the grid has all of the width

export function makeShell(context, panels) {
  const tabs = new Tabs(panels.map((makePanel) => makePanel(context)));
  const [header, actions, toolbar] = [makeHeader, makeActions, makeToolbar].map((make) => make(context));
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

  const parts = [notices, header, actions, toolbar, grid, ...side, tabs];
  return {
    show: (title) => tabs.show(title),
    announce: notices.announce,
    silent(seconds) {
      setAttribute(context.root, "data-silent", seconds !== null);
      notices.silent(seconds);
    },
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

/** What is to be said: of the mesh as a whole above all, of what a person did in the line at the foot. */
function makeNotices(store) {
  const banner = element("div", { class: "meshbook-banner", role: "alert" }, "Waiting for the kernel…");
  const status = element("div", { class: "meshbook-status", role: "status", "aria-live": "polite" });
  let silence = null;
  const tell = () => {
    const text =
      silence ??
      (store.mesh === null
        ? "Waiting for the kernel…"
        : store.mesh.alive
          ? ""
          : "The mesh is down. %mesh up starts another one.");
    setText(banner, text);
    setAttribute(banner, "hidden", text === "");
  };
  return {
    element: banner,
    status,
    update: (changed) => changed.has("mesh") && tell(),
    silent(seconds) {
      silence = seconds === null ? null : silenceText(seconds);
      tell();
    },
    announce(text, kind) {
      setText(status, text);
      status.dataset.kind = kind;
      return () => status.textContent === text && setText(status, "");
    },
  };
}

function silenceText(seconds) {
  const told = Math.floor(seconds / 5) * 5; // each other number would be read aloud
  return `No answer from the kernel for ${told} s. It may be busy, or was restarted: then run %mesh dash again.`;
}
