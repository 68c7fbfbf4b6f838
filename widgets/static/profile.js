/** The panel of the last profile: a page of its own, without scripts and without a way to this one. */

import { element, setAttribute, setText } from "./dom.js";

export function makeProfilePanel(context) {
  const note = element("p", { class: "meshbook-note" }, "Profile above samples what the ranks spend their time on.");
  const frame = element("div", { class: "meshbook-profile", hidden: true });
  context.showProfile = (html) => {
    const at = new Date().toTimeString().slice(0, 8);
    setText(note, `Taken at ${at}, of ${context.selection.size ? `ranks ${context.selection.text}` : "all ranks"}.`);
    // An empty sandbox: what is in it is data, though it is made and escaped by the kernel.
    frame.replaceChildren(element("iframe", { sandbox: "", srcdoc: html, title: "Profile" }));
    setAttribute(frame, "hidden", false);
    context.show("Profile");
  };
  return { title: "Profile", element: element("div", { class: "meshbook-pane" }, note, frame), update() {} };
}
