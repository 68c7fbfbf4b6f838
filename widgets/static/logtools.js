/** The tools above the log: what lines are shown, what is searched, how rows look, and where the text goes. */

import { element, setAttribute, setText } from "./dom.js";

const TYPING_ENDS_AFTER = 200; // milliseconds without a key: each question costs the kernel a look at all lines

/**
 * Makes the tools. `on` has what they do: `filter()`, `search(text)`, `step(steps)`, `rows()`, `copy()`, `download()`.
 * The result has `element`, `query` (as the kernel wants it), `shows(name)`, ways to say something, and `below`: the
 * buttons that stand below the lines.
 */
export function makeLogTools(on) {
  const filter = textBox("Filter", "Show only lines with this text", later(on.filter));
  const regex = toggle(".*", "The filter is a regular expression", on.filter);
  const exact = toggle("Aa", "Upper and lower case differ in the filter", on.filter);
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
  const time = toggle("Time", "Show when each line came", on.rows);
  const wrap = toggle("Wrap", "Break long lines", on.rows);
  const view = { time, wrap };
  const copy = action("Copy", "Copy what is marked, or all of these lines", on.copy);
  const download = action("Download", "Save all of these lines as a file", on.download);
  const error = element("div", { class: "meshbook-log-error", role: "alert", hidden: true });
  const tools = [group(filter, regex, exact, stream, cell), group(...search.parts)];
  return {
    element: element("div", { class: "meshbook-log-tools", role: "toolbar", "aria-label": "Log" }, ...tools, error),
    search,
    below: [time, wrap, copy, download],
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
    shows: (name) => isOn(view[name]),
    toggle: (name) => view[name].click(),
    setCells: (cells, running) => fillCells(cell, cells, running),
    complain(text) {
      setText(error, text);
      setAttribute(error, "hidden", !text);
      setAttribute(filter, "aria-invalid", text ? "true" : null);
    },
  };
}

function makeSearch(on) {
  const box = textBox(
    "Search",
    "Mark this text in the lines (Enter: next, Shift+Enter: the one before)",
    later(() => on.search(box.value)),
  );
  box.dataset.focus = "yes";
  const tally = element("span", { class: "meshbook-log-tally", "aria-live": "polite" });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && box.value) {
      event.stopPropagation();
      box.value = "";
      on.search("");
    }
    if (event.key !== "Enter") return;
    event.preventDefault();
    on.search(box.value); // what was typed just now counts
    on.step(event.shiftKey ? -1 : 1);
  });
  const parts = [
    box,
    action("↑", "The match before (N)", () => on.step(-1)),
    action("↓", "The next match (n)", () => on.step(1)),
    tally,
  ];
  return { parts, focus: () => box.focus(), say: (text) => setText(tally, text) };
}

function later(act) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(act, TYPING_ENDS_AFTER);
  };
}

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

function toggle(text, label, changed) {
  const button = action(text, label, () => {
    setAttribute(button, "aria-pressed", String(!isOn(button)));
    changed();
  });
  button.setAttribute("aria-pressed", "false");
  return button;
}

function isOn(button) {
  return button.getAttribute("aria-pressed") === "true";
}

function action(text, label, click) {
  return element(
    "button",
    { type: "button", class: "meshbook-log-button", title: label, "aria-label": label, on: { click } },
    text,
  );
}

function choice(name, options, change) {
  const made = options.map(([value, text]) => element("option", { value }, text));
  return element("select", { class: "meshbook-log-choice", "aria-label": name, on: { change } }, ...made);
}

function group(...parts) {
  return element("div", { class: "meshbook-log-group" }, ...parts);
}

function fillCells(select, cells, running) {
  const wanted = ["", ...[...cells].sort((one, other) => other - one).map(String)];
  const text = (value) => (value === "" ? "all cells" : `cell ${value}${Number(value) === running ? " (runs)" : ""}`);
  if (wanted.map(text).join() === [...select.options].map((option) => option.text).join()) return;
  const chosen = select.value;
  select.replaceChildren(...wanted.map((value) => element("option", { value }, text(value))));
  select.value = chosen;
}
