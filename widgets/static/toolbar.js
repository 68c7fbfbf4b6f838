// @ts-check
/** The controls above the grid: the field for a selector, the channel that colours the cells, and the scale. */

import { CHANNELS } from "./channels.js";
import { element, setAttribute, setText } from "./dom.js";
import { HEAT_GRADIENT } from "./heat.js";
import { copyText } from "./saving.js";
import { asValue } from "./units.js";

/**
 * @import { Changed, Context } from "./context.d.ts"
 * @import { Channel } from "./protocol.d.ts"
 * @import { Store } from "./store.js"
 */

const LONGEST = 28; // characters of a selector on the button

/** @param {Context} context */
export function makeToolbar(context) {
  const field = makeField(context);
  const copy = makeCopy(context);
  const colours = makeChannels(context);
  const legend = makeLegend(context.store);
  return {
    element: element(
      "div",
      { class: "meshbook-toolbar" },
      field.element,
      copy.element,
      element("span", { class: "meshbook-spring" }),
      colours.element,
      field.problem,
    ),
    legend: legend.element,
    focusField: () => field.focus(),
    /** @param {Changed} changed */
    update(changed) {
      if (changed.has("selected") || changed.has("mesh")) {
        field.update();
        copy.update();
      }
      if (changed.has("channel")) {
        colours.update();
        legend.update();
      }
    },
  };
}

/** @param {Context} context */
function makeField({ store, selection }) {
  const input = element("input", {
    type: "text",
    class: "meshbook-field",
    placeholder: "Select: 0-3, failed, hosts=1",
    "aria-label": "Select ranks",
    title: "A selector as in %%mesh: 0-3, failed, ok, hosts=1, ::2, !3. Press / in the grid to focus this field",
    spellcheck: "false",
    autocomplete: "off",
  });
  const count = element("span", { class: "meshbook-quiet meshbook-count", "aria-live": "polite" });
  const problem = element("div", { class: "meshbook-problem", role: "alert" });
  let isChosen = false; // by Enter, after which the browser fires "change", too
  const choose = () => {
    isChosen = true;
    void selection.choose(input.value);
  };
  input.addEventListener("input", () => {
    isChosen = false;
  });
  input.addEventListener("change", () => {
    if (!isChosen) choose();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") choose();
    else if (event.key === "Escape") {
      input.value = "";
      void selection.clear();
    }
  });
  return {
    element: element("label", { class: "meshbook-select" }, input, count),
    problem,
    focus() {
      input.focus();
      input.select();
    },
    update() {
      if (document.activeElement !== input) input.value = selection.sel;
      setText(count, selection.size ? `${selection.size} of ${store.size}` : "");
      setText(problem, selection.problem);
      setAttribute(input, "aria-invalid", selection.problem !== "" && "true");
    },
  };
}

/** @param {Context} context */
function makeCopy({ selection, announce }) {
  const line = () => `%%mesh ${selection.sel || "all"}`;
  const copy = async () => {
    try {
      await copyText(`${line()}\n`);
      announce(`Copied “${line()}”: paste it as the first line of a cell`);
    } catch {
      announce(`The browser does not allow copying; begin a cell with ${line()}`, "error");
    }
  };
  const code = element("code", { class: "meshbook-code" });
  const button = element(
    "button",
    {
      type: "button",
      class: "meshbook-button",
      title: "Copy this line for a cell",
      on: { click: () => void copy() },
    },
    "Copy ",
    code,
  );
  return {
    element: button,
    update: () => setText(code, shortened(line())),
  };
}

/** @param {string} text */
function shortened(text) {
  return text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text;
}

/** @param {Context} context */
function makeChannels({ store, send, announce }) {
  const options = CHANNELS.map(({ name, title }) => element("option", { value: name }, title));
  const select = element("select", { class: "meshbook-choice", "aria-label": "Colour by" }, ...options);
  select.addEventListener("change", () => {
    send({ kind: "channel", name: /** @type {Channel} */ (select.value) });
    announce(`Colours show: ${select.selectedOptions[0].text}`);
  });
  return {
    element: element(
      "label",
      { class: "meshbook-colour" },
      element("span", { class: "meshbook-quiet" }, "Colour by"),
      select,
    ),
    update() {
      select.value = store.channel.name;
    },
  };
}

/**
 * The scale of a channel with amounts. The chips in the header explain the colours of the states.
 *
 * @param {Store} store
 */
function makeLegend(store) {
  const low = element("span");
  const high = element("span");
  const bar = element("span", { class: "meshbook-heat", style: { background: HEAT_GRADIENT } });
  const legend = element("div", { class: "meshbook-legend", role: "group", "aria-label": "Scale" }, low, bar, high);
  return {
    element: legend,
    update() {
      const { name, unit, low: least, high: most } = store.channel;
      setAttribute(legend, "hidden", name === "state");
      setText(low, asValue(least, unit));
      setText(high, asValue(most, unit));
    },
  };
}
