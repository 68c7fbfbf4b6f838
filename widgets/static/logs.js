// @ts-check
/** The panel with the output of the selected ranks. The kernel filters it; the view searches and draws it. */

import { element, setAttribute, setText } from "./dom.js";
import { messageOf } from "./errors.js";
import { LogFeed } from "./logfeed.js";
import { guessHeight, makeLogRow } from "./logrows.js";
import { logText } from "./logtext.js";
import { makeLogTools } from "./logtools.js";
import { LogSearch } from "./logwindow.js";
import { selectorOf } from "./ranks.js";
import { copyText, saveFile } from "./saving.js";
import { asCount, asCounted } from "./units.js";
import { VirtualList } from "./virtual.js";

/**
 * @import { Change, Changed, Context, Panel } from "./context.d.ts"
 * @import { Item, Notice } from "./logrows.js"
 * @import { FinishedLine, LogQuestion } from "./logwindow.js"
 * @import { LogLine, MeshSection } from "./protocol.d.ts"
 */

/** @type {Change[]} */
const CHOOSES = ["selected", "mesh", "shown"];

/**
 * @param {Context} context
 * @returns {Panel}
 */
export function makeLogsPanel(context) {
  const panel = new LogsPanel(context);
  return {
    title: "Logs",
    element: panel.element,
    update: (changed) => panel.update(changed),
    dispose: () => panel.dispose(),
  };
}

class LogsPanel {
  #context;
  #search = new LogSearch();
  #tools;
  /** @type {VirtualList<Item>} */
  #list;
  #feed;
  #scroller = element("div", {
    class: "meshbook-log-lines",
    role: "log",
    "aria-live": "off",
    tabindex: 0,
    "aria-label": "Lines",
  });
  #more = element("button", {
    type: "button",
    class: "meshbook-log-more",
    hidden: true,
    on: { click: () => this.#toEnd() },
  });
  #note = element("div", { class: "meshbook-log-note" });
  /** @type {Notice | null} */
  #notice = null;
  /** @type {string | null} the selector of the lines */
  #sel = null;
  /** @type {MeshSection | null} the mesh of the lines */
  #mesh = null;
  #fresh = 0; // lines that were added since the reader left the end
  /** @type {Set<number>} */
  #cells = new Set();

  /** @param {Context} context */
  constructor(context) {
    this.#context = context;
    this.#tools = makeLogTools({
      filter: () => this.#restart(),
      search: (text) => this.#find(text),
      step: (steps) => void this.#step(steps),
      rows: () => this.#restyle(),
      copy: () => void this.#copy(),
      download: () => void this.#download(),
    });
    this.#list = new VirtualList(this.#scroller, {
      makeRow: (line) => makeLogRow(line, this.#search),
      guess: (line) => guessHeight(line, this.#tools.shows("wrap"), this.#scroller.clientWidth),
      onScroll: () => this.#scrolled(),
    });
    this.#feed = new LogFeed((question) => this.#ask(question), this.#list, {
      cleared: () => this.#cleared(),
      added: (lines, isAbove) => this.#added(lines, isAbove),
      failed: (text) => this.#tools.showError(text),
    });
    const frame = element("div", { class: "meshbook-log-frame" }, this.#scroller, this.#more);
    const foot = element("div", { class: "meshbook-log-foot" }, this.#note, ...this.#tools.below);
    const keys = { keydown: this.#key };
    this.element = element("div", { class: "meshbook-pane meshbook-log", on: keys }, this.#tools.element, frame, foot);
    this.#restyle();
  }

  /** @param {Changed} changed */
  update(changed) {
    const { store } = this.#context;
    if (!store.mesh) return;
    if (CHOOSES.some((name) => changed.has(name))) this.#choose();
    this.#tools.setCells(this.#cells, store.cell?.number);
    this.#feed.askSoon();
  }

  #choose() {
    const { store, selection } = this.#context;
    const sel = selection.size ? selectorOf(selection.ranks, store.size) : "all";
    if (sel === this.#sel && store.mesh === this.#mesh) return;
    [this.#sel, this.#mesh] = [sel, store.mesh];
    this.#restart();
  }

  dispose() {
    this.#feed.stop();
    this.#list.dispose();
  }

  /** @param {LogQuestion} question */
  async #ask(question, query = this.#tools.query) {
    const fields = { sel: this.#sel ?? "all", query, ...question };
    return (await this.#context.request("logs", fields)).content;
  }

  /**
   * @param {FinishedLine[]} added
   * @param {boolean} isAbove
   */
  #added(added, isAbove) {
    const { lines } = this.#feed.window;
    this.#search.add(added, isAbove);
    this.#search.keepWithin(lines);
    if (!isAbove) this.#fresh += added.length;
    for (const { cell } of added) if (cell !== null) this.#cells.add(cell);
    this.#showLines();
  }

  #cleared() {
    this.#search.setText(this.#search.text, []);
    this.#fresh = 0;
  }

  #restart() {
    if (this.#sel === null) return; // no mesh yet
    this.#list.follow();
    this.#feed.restart();
  }

  // Searching

  /** @param {string} text */
  #find(text) {
    if (text === this.#search.text) return;
    this.#search.setText(text, this.#feed.window.lines);
    if (text && this.#search.step(-1)) this.#revealCurrent();
    this.#list.repaint();
    this.#showTexts();
  }

  /** @param {number} steps */
  async #step(steps) {
    if (!this.#search.text) return;
    const isAbove = steps < 0 || !this.#search.found.length;
    if (!this.#search.step(steps) && !(isAbove && (await this.#findOlder()))) this.#search.wrap(steps);
    this.#revealCurrent();
    this.#list.repaint();
    this.#showTexts();
  }

  #revealCurrent() {
    if (this.#search.current) this.#list.reveal(this.#search.current);
  }

  /** Searches older lines. The kernel finds the match, unless it filters: then older lines are loaded page by page. */
  async #findOlder() {
    const query = this.#tools.query;
    if (query.text) {
      await this.#feed.loadOlder();
      return this.#search.step(-1);
    }
    /** @type {LogLine | undefined} */
    let found;
    await this.#feed.inTurn(async () => {
      const question = { after: 0, before: this.#feed.window.lines[0]?.serial ?? null, limit: 1 };
      found = (await this.#ask(question, { ...query, text: this.#search.text, regex: false, case: false })).lines[0];
    });
    if (!found) return false;
    await this.#goTo(found[0]);
    return true;
  }

  /** @param {number} serial */
  async #goTo(serial) {
    this.#list.follows = false;
    await this.#feed.moveTo(serial);
    this.#search.current = this.#feed.window.lines.find((line) => line.serial === serial) ?? null;
    this.#fresh = 0;
  }

  // Showing

  #showLines() {
    const { lines, live, reachesEnd } = this.#feed.window;
    this.#notice = this.#noticeNow();
    this.#list.setItems([...(this.#notice ? [this.#notice] : []), ...lines, ...(reachesEnd ? live : [])]);
    this.#showTexts();
  }

  #showTexts() {
    if (this.#list.follows) this.#fresh = 0;
    const isCounted = this.#fresh > 0 && this.#feed.window.reachesEnd;
    setText(this.#more, isCounted ? `↓ ${asCount(this.#fresh)} new` : "↓ Newest");
    setAttribute(this.#more, "hidden", this.#list.follows);
    setText(this.#note, this.#noteText());
    this.#tools.search.setMatchCount(this.#search.matchCount);
  }

  #noticeNow() {
    const { dropped, reachesStart } = this.#feed.window;
    if (!dropped || !reachesStart) return null;
    const notice = `${asCount(dropped)} older ${dropped === 1 ? "line was" : "lines were"} discarded`;
    return this.#notice?.notice === notice ? this.#notice : { notice };
  }

  #noteText() {
    const { lines, live, matches, isPartial } = this.#feed.window;
    const { size, text } = this.#context.selection;
    const ranks = size ? `rank${size === 1 ? "" : "s"} ${text}` : "all ranks";
    const isFiltered = Object.values(this.#tools.query).some(Boolean);
    const partly = isPartial ? "; the search was slow, so some lines were not searched" : "";
    if (!lines.length && !live.length) {
      return isFiltered ? `No line of ${ranks} matches${partly}.` : `No output from ${ranks} yet.`;
    }
    return `${asCounted(Math.max(matches, lines.length), isFiltered ? "matching line" : "line")} of ${ranks}${partly}`;
  }

  #restyle() {
    this.#scroller.classList.toggle("meshbook-log-timed", this.#tools.shows("time"));
    this.#scroller.classList.toggle("meshbook-log-wrapped", this.#tools.shows("wrap"));
    this.#list.remake();
  }

  #scrolled() {
    if (this.#list.isAtEnd && this.#feed.window.reachesEnd) this.#list.follow();
    else if (this.#list.isAtEnd) this.#feed.askSoon();
    if (this.#list.isAtTop) void this.#feed.loadOlder();
    this.#showTexts();
  }

  #toEnd() {
    if (this.#feed.window.reachesEnd) this.#list.follow();
    else this.#restart();
    this.#showTexts();
  }

  /** @param {KeyboardEvent} event */
  #key = (event) => {
    const target = /** @type {Element} */ (event.target);
    if (target.closest("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    /** @type {Record<string, () => void>} */
    const actions = {
      n: () => void this.#step(1),
      N: () => void this.#step(-1),
      "/": () => this.#tools.search.focus(),
      f: () => this.#toEnd(),
      w: () => this.#tools.toggle("wrap"),
      t: () => this.#tools.toggle("time"),
    };
    const act = actions[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  };

  // Copying and saving

  async #copy() {
    const marked = getSelection();
    const isMarked = marked !== null && !marked.isCollapsed && this.#scroller.contains(marked.anchorNode);
    await this.#announcing("copied", async () => {
      await copyText(isMarked ? marked.toString() : (await this.#allText()).join(""));
    });
  }

  async #download() {
    const { store, selection } = this.#context;
    const ranks = selection.size ? `-ranks-${selection.text.slice(0, 40)}` : "";
    await this.#announcing("saved", async () =>
      saveFile(`${store.mesh?.name ?? "mesh"}${ranks}.log`, await this.#allText()),
    );
  }

  /**
   * @param {string} done what is done, in the past tense
   * @param {() => Promise<void>} act
   */
  async #announcing(done, act) {
    try {
      await act();
      this.#context.announce(`The log was ${done}.`);
    } catch (error) {
      this.#context.announce(`The log was not ${done}: ${messageOf(error)}`, "error");
    }
  }

  #allText() {
    const options = { isTimed: this.#tools.shows("time"), isRanked: this.#context.selection.size !== 1 };
    /** @param {number} share */
    const report = (share) => this.#context.announce(`Reading the log: ${Math.round(share * 100)} %`);
    return logText((question) => this.#ask(question), options, report);
  }
}
