// @ts-check
/**
 * The picture of the dashboard that is saved with the notebook, as a separate output after that of the widget.
 *
 * It is hidden where the dashboard is live. When JupyterLab or Notebook 7 saves the notebook, this module puts the
 * newest picture from the kernel into that output. The kernel cannot: it loses the output when the page is reloaded.
 */

import { element } from "./dom.js";

/** @import { Cell, Model } from "./context.d.ts" */
/** @import { PictureMessage } from "./protocol.d.ts" */

/**
 * Renews the picture whenever the notebook is saved. Returns a function that ends this.
 *
 * @param {Model} model
 */
export function keepPicture(model) {
  /** @type {PictureMessage["data"] | null} */
  let newest = null;
  /** @param {PictureMessage | { kind: string } | undefined} content */
  const receive = (content) => {
    if (content !== undefined && "data" in content) newest = content.data;
  };
  const notebook = model.widget_manager?.context; // other front ends have none
  /**
   * @param {unknown} _
   * @param {string} state
   */
  const renew = (_, state) => {
    if (state === "started" && newest) replace(notebook?.model.cells ?? [], model.get("picture_id"), newest);
  };
  model.on("msg:custom", receive);
  notebook?.saveState?.connect(renew);
  return () => {
    model.off("msg:custom", receive);
    notebook?.saveState?.disconnect(renew);
  };
}

/**
 * Hides the picture for as long as `root` is on the page.
 *
 * @param {HTMLElement} root
 * @param {Model} model
 */
export function hidePicture(root, model) {
  if ("connected" in root.dataset) return;
  root.dataset.connected = ""; // the picture itself hides a widget that is not (snapshot.py)
  const picture = `.meshbook-picture[data-of="${model.get("picture_id")}"]`;
  const hidden = `${picture}, .jp-OutputArea-child:has(> * ${picture}) { display: none }`;
  root.append(element("style", {}, hidden));
}

/**
 * @param {Iterable<Cell>} cells
 * @param {string} id
 * @param {PictureMessage["data"]} data
 */
function replace(cells, id, data) {
  for (const { outputs } of cells) {
    if (!outputs) continue; // a cell of text
    for (let index = 0; index < outputs.length; index += 1) {
      const output = outputs.get(index);
      const isOld = output.data["text/html"] !== data["text/html"];
      if (output.metadata.meshbook?.picture_id === id && isOld) outputs.set(index, { ...output.toJSON(), data });
    }
  }
}
