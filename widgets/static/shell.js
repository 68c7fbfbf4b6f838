/** How the parts of the dashboard lie on the page, and who is told of a change. */

import { element, setAttribute, setText } from "./dom.js";
import { Tabs } from "./tabs.js";

export function makeShell(context, panels) {
  const tabs = new Tabs(panels.map((makePanel) => makePanel(context)));
  const status = element("div", { class: "meshbook-status", role: "status", "aria-live": "polite" });
  const banner = element("div", { class: "meshbook-banner", role: "alert", hidden: true });
  const main = element("div", { class: "meshbook-main" });
  context.root.append(banner, main, tabs.element, status);
  return {
    show: (title) => tabs.show(title),
    update: (changed) => tabs.update(changed),
    announce(text, kind) {
      setText(status, text);
      status.dataset.kind = kind;
    },
    silent(seconds) {
      setAttribute(banner, "hidden", seconds === null);
      if (seconds !== null) setText(banner, silenceText(seconds));
    },
    dispose: () => tabs.dispose(),
  };
}

function silenceText(seconds) {
  const since = `No answer from the kernel for ${Math.round(seconds)} s.`;
  return `${since} It may be busy, or was restarted: then run %mesh dash again.`;
}
