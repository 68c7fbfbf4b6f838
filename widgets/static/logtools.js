// @ts-check
/** The tools above the log: filter, search, appearance of rows, copy and download. */

import { element, setAttribute, setText } from "./dom.js";

/** @import { LogQuery } from "./protocol.d.ts" */

/**
 * @typedef {object} LogToolListeners
 * @property {() => void} filter the filter has changed
 * @property {(text: string) => void} search
 * @property {(steps: number) => void} step to the next match, or for -1 the previous
 * @property {() => void} rows rows are to be shown in another way
 * @property {() => void} copy
 * @property {() => void} download
 */
/** @typedef {"time" | "wrap"} RowOption */

const TYPING_ENDS_AFTER = 200; // milliseconds without a key; the kernel searches all lines for each question

/**
 * Makes the tools: `element` above the lines and the buttons `below` them.
 *
 * @param {LogToolListeners} on
 */
export function makeLogTools(on) {
  const filter = textBox("Filter", "Show only lines with this text", later(on.filter));
  const regex = toggle(".*", "The filter is a regular expression", on.filter);
  const exact = toggle("Aa", "Match case in the filter", on.filter);
  const stream = choice(
    "Stream",
    [
      ["", "stdout, stderr"],
      ["stdout", "stdout"],
      ["stderr", "stderr"],
    ],
    on.filter,
  );
  const cell = choice("Cell", [["", "all cells"]], on.filter);
  const search = makeSearch(on);
  const time = toggle("Time", "Show the time of each line", on.rows);
  const wrap = toggle("Wrap", "Break long lines", on.rows);
  const view = { time, wrap };
  const copy = action("Copy", "Copy the selected text, or all of these lines", on.copy);
  const download = action("Download", "Save all of these lines as a file", on.download);
  const error = element("div", { class: "meshbook-log-error", role: "alert", hidden: true });
  const tools = [group(filter, regex, exact, stream, cell), group(...search.parts)];
  return {
    element: element("div", { class: "meshbook-log-tools", role: "toolbar", "aria-label": "Log" }, ...tools, error),
    search,
    below: [time, wrap, copy, download],
    /** @returns {Required<LogQuery>} */
    get query() {
      const text = filter.value;
      return {
        text,
        regex: isOn(regex),
        case: isOn(exact),
        stream: stream.value,
        cell: cell.value ? Number(cell.value) : null,
      };
    },
    /** @param {RowOption} name */
    shows: (name) => isOn(view[name]),
    /** @param {RowOption} name */
    toggle: (name) => view[name].click(),
    /**
     * @param {Set<number>} cells
     * @param {number | null | undefined} running
     */
    setCells: (cells, running) => fillCells(cell, cells, running),
    /** @param {string} text "" for no complaint */
    showError(text) {
      setText(error, text);
      setAttribute(error, "hidden", !text);
      setAttribute(filter, "aria-invalid", text ? "true" : null);
    },
  };
}

/** @param {LogToolListeners} on */
function makeSearch(on) {
  const box = textBox(
    "Search",
    "Highlight this text in the lines (Enter: next, Shift+Enter: previous)",
    later(() => on.search(box.value)),
  );
  box.dataset.focus = "yes";
  const matchCount = element("span", { class: "meshbook-log-tally", "aria-live": "polite" });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && box.value) {
      event.stopPropagation();
      box.value = "";
      on.search("");
    }
    if (event.key !== "Enter") return;
    event.preventDefault();
    on.search(box.value); // without waiting for the end of typing
    on.step(event.shiftKey ? -1 : 1);
  });
  const parts = [
    box,
    action("↑", "Previous match (N)", () => on.step(-1)),
    action("↓", "Next match (n)", () => on.step(1)),
    matchCount,
  ];
  return {
    parts,
    focus: () => box.focus(),
    /** @param {string} text */
    setMatchCount: (text) => setText(matchCount, text),
  };
}

/** @param {() => void} act */
function later(act) {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(act, TYPING_ENDS_AFTER);
  };
}

/**
 * @param {string} name
 * @param {string} label
 * @param {() => void} input
 */
function textBox(name, label, input) {
  const attributes = {
    type: "search",
    placeholder: name,
    title: label,
    "aria-label": `${name} the log`,
    spellcheck: "false",
  };
  return element("input", { class: "meshbook-log-box", ...attributes, on: { input } });
}

/**
 * @param {string} text
 * @param {string} label
 * @param {() => void} changed
 */
function toggle(text, label, changed) {
  /** @type {HTMLButtonElement} */
  const button = action(text, label, () => {
    setAttribute(button, "aria-pressed", String(!isOn(button)));
    changed();
  });
  button.setAttribute("aria-pressed", "false");
  return button;
}

/** @param {HTMLElement} button */
function isOn(button) {
  return button.getAttribute("aria-pressed") === "true";
}

/**
 * @param {string} text
 * @param {string} label
 * @param {() => void} click
 */
function action(text, label, click) {
  return element(
    "button",
    { type: "button", class: "meshbook-log-button", title: label, "aria-label": label, on: { click } },
    text,
  );
}

/**
 * @param {string} name
 * @param {[value: string, text: string][]} options
 * @param {() => void} change
 */
function choice(name, options, change) {
  const made = options.map(([value, text]) => element("option", { value }, text));
  return element("select", { class: "meshbook-log-choice", "aria-label": name, on: { change } }, ...made);
}

/** @param {...HTMLElement} parts */
function group(...parts) {
  return element("div", { class: "meshbook-log-group" }, ...parts);
}

/**
 * @param {HTMLSelectElement} select
 * @param {Set<number>} cells
 * @param {number | null | undefined} running
 */
function fillCells(select, cells, running) {
  const wanted = ["", ...[...cells].sort((one, other) => other - one).map(String)];
  /** @param {string} value */
  const text = (value) => (value === "" ? "all cells" : `cell ${value}${Number(value) === running ? " (runs)" : ""}`);
  if (wanted.map(text).join() === [...select.options].map((option) => option.text).join()) return;
  const chosen = select.value;
  select.replaceChildren(...wanted.map((value) => element("option", { value }, text(value))));
  select.value = chosen;
}
