// @ts-check
/** The panel of the last profile: an HTML page without scripts and without access to this one. */

import { element, setAttribute, setText } from "./dom.js";

/** @import { Context, Panel } from "./context.d.ts" */

/**
 * @param {Context} context
 * @returns {Panel}
 */
export function makeProfilePanel(context) {
  const note = element(
    "p",
    { class: "meshbook-note" },
    "The Profile button above samples where the ranks spend their time.",
  );
  const frame = element("div", { class: "meshbook-profile", hidden: true });
  context.showProfile = (html) => {
    const at = new Date().toTimeString().slice(0, 8);
    setText(note, `Taken at ${at}, of ${context.selection.size ? `ranks ${context.selection.text}` : "all ranks"}.`);
    // An empty sandbox, although the kernel escapes the data in the page.
    frame.replaceChildren(element("iframe", { sandbox: "", srcdoc: html, title: "Profile" }));
    setAttribute(frame, "hidden", false);
    context.show("Profile");
  };
  return { title: "Profile", element: element("div", { class: "meshbook-pane" }, note, frame), update() {} };
}
