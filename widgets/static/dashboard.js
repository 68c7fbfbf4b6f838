/** The dashboard of a mesh, as anywidget shows it: a view of a model that lives in the kernel. Words: protocol.py. */

import { Connection } from "./connection.js";
import { element } from "./dom.js";
import { Frames } from "./frames.js";
import { keepKeys } from "./keys.js";
import { PANELS } from "./panels.js";
import { Selection } from "./selection.js";
import { makeShell } from "./shell.js";
import { Store } from "./store.js";
import { Theme } from "./theme.js";

/** Shows the dashboard in `el`; the function that is returned takes it down. */
function render({ model, el }) {
  const root = element("div", { class: "meshbook-dashboard" });
  keepKeys(root);
  el.append(root);
  const store = new Store();
  const frames = new Frames((changed) => shell.update(changed));
  const theme = new Theme(root, () => frames.ask(["theme"]));
  const connection = new Connection(model, {
    onState: (content, buffers) => frames.ask(store.apply(content, buffers)),
    onSilence: (seconds) => shell.silent(seconds),
    expectsMore: () => store.cell !== null,
  });
  const request = (kind, fields, options) => connection.request(kind, fields, options);
  // Returns what takes it back, for what is not true for ever.
  const announce = (text, kind = "info") => shell.announce(text, kind);
  const selection = new Selection(store, request, {
    changed: () => frames.ask(["selected"]),
    complain: (text) => announce(text, "error"),
  });
  const send = (content) => connection.send(content);
  const show = (title) => shell.show(title);
  const shell = makeShell({ store, request, send, selection, theme, announce, show, root }, PANELS);
  theme.start();
  connection.open();
  return () => {
    connection.close();
    theme.stop();
    frames.stop();
    shell.dispose();
    root.remove();
  };
}

export default { render };
