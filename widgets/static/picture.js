/**
 * The picture of the dashboard that is saved with the notebook, as an output of its own after that of the widget.
 *
 * It is hidden where the dashboard is live. When the notebook is saved, JupyterLab and Notebook 7 put in the newest one
 * that the kernel has sent: the kernel itself loses its way to an output when the page is reloaded.
 */

import { element } from "./dom.js";

/** Renews the picture whenever the notebook is saved; the function that is returned ends that. */
export function keepPicture(model) {
  let newest = null;
  const receive = (content) => {
    if (content?.kind === "picture") newest = content.data;
  };
  const notebook = model.widget_manager?.context; // other front ends have none
  const renew = (_, state) => {
    if (state === "started" && newest) replace(notebook.model.cells ?? [], model.get("picture_id"), newest);
  };
  model.on("msg:custom", receive);
  notebook?.saveState?.connect(renew);
  return () => {
    model.off("msg:custom", receive);
    notebook?.saveState?.disconnect(renew);
  };
}

/** Hides the picture for as long as `root` is on the page. */
export function hidePicture(root, model) {
  if ("connected" in root.dataset) return;
  root.dataset.connected = ""; // the picture itself hides a widget that is not (snapshot.py)
  const picture = `.meshbook-picture[data-of="${model.get("picture_id")}"]`;
  const hidden = `${picture}, .jp-OutputArea-child:has(> * ${picture}) { display: none }`;
  root.append(element("style", {}, hidden));
}

function replace(cells, id, data) {
  for (const { outputs } of cells) {
    for (let index = 0; index < (outputs?.length ?? 0); index += 1) {
      const output = outputs.get(index);
      const isOld = output.data["text/html"] !== data["text/html"];
      if (output.metadata.meshbook?.picture_id === id && isOld) outputs.set(index, { ...output.toJSON(), data });
    }
  }
}
