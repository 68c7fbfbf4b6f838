// @ts-check
/** The dashboard of a mesh as anywidget shows it: a view of a model in the kernel. The messages are in protocol.py. */

import { Connection } from "./connection.js";
import { makeCurvesPanel } from "./curves.js";
import { element } from "./dom.js";
import { Frames } from "./frames.js";
import { keepKeys } from "./keys.js";
import { PANELS } from "./panels.js";
import { hidePicture, keepPicture } from "./picture.js";
import { Selection } from "./selection.js";
import { makeChartsShell, makeShell } from "./shell.js";
import { Store } from "./store.js";
import { Theme } from "./theme.js";

/** @import { Announce, Context, Model, Request } from "./context.d.ts" */

/**
 * Shows the dashboard in `el`. Returns a function that removes it.
 *
 * @param {{model: Model, el: HTMLElement}} view
 */
function render({ model, el }) {
  const root = element("div", { class: "meshbook-dashboard" });
  keepKeys(root);
  el.append(root);
  const store = new Store();
  const frames = new Frames((changed) => shell.update(changed));
  const theme = new Theme(root, () => frames.request(["theme"]));
  const connection = new Connection(model, {
    onState: (content, buffers) => {
      hidePicture(root, model);
      frames.request(store.apply(content, buffers));
    },
    onSilence: (seconds) => shell.silent(seconds),
    expectsMore: () => store.cell !== null,
  });
  /** @type {Request} */
  const request = (kind, fields, options) => connection.request(kind, fields, options);
  /** @type {Announce} */
  const announce = (text, kind = "info") => shell.announce(text, kind);
  const selection = new Selection(store, request, () => frames.request(["selected"]));
  /** @type {Context} */
  const context = {
    store,
    request,
    send: (message) => connection.send(message),
    selection,
    theme,
    announce,
    show: (title) => shell.show(title),
    root,
  };
  const metrics = model.get("metrics");
  const shell = metrics ? makeChartsShell(context, makeCurvesPanel(context, metrics)) : makeShell(context, PANELS);
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

/**
 * Starts the work that does not depend on a view being shown. Returns a function that ends it.
 *
 * @param {{model: Model}} widget
 */
function initialize({ model }) {
  return keepPicture(model);
}

export default { initialize, render };
