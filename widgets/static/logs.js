/** The panel that shows what the selected ranks print: filtered by the kernel, searched and drawn here. */

import { element, setAttribute, setText } from "./dom.js";
import { LogFeed } from "./logfeed.js";
import { guessHeight, makeLogRow, makeNotice } from "./logrows.js";
import { LogSearch } from "./logwindow.js";
import { makeLogTools } from "./logtools.js";
import { logText } from "./logtext.js";
import { selectorOf } from "./ranks.js";
import { copyText, saveFile } from "./saving.js";
import { asCount, asCounted } from "./units.js";
import { VirtualList } from "./virtual.js";

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
  #notice = makeNotice("");
  #sel = null; // of the lines that are here
  #mesh = null; // and whose they are
  #fresh = 0; // lines that came since the reader left the end
  #cells = new Set();

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
      took: (added, isAbove) => this.#took(added, isAbove),
      failed: (text) => this.#tools.complain(text),
    });
    const frame = element("div", { class: "meshbook-log-frame" }, this.#scroller, this.#more);
    const foot = element("div", { class: "meshbook-log-foot" }, this.#note, ...this.#tools.below);
    const keys = { keydown: this.#key };
    this.element = element("div", { class: "meshbook-pane meshbook-log", on: keys }, this.#tools.element, frame, foot);
    this.#restyle();
  }

  update(changed) {
    const { store } = this.#context;
    if (!store.mesh) return;
    if (["selected", "mesh", "shown"].some((name) => changed.has(name))) this.#choose();
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

  #ask(question, query = this.#tools.query) {
    return this.#context.request("logs", { sel: this.#sel, query, ...question }).then(({ content }) => content);
  }

  #took(added, isAbove) {
    const { lines } = this.#feed.window;
    this.#search.add(added, isAbove);
    this.#search.keepWithin(lines);
    if (!isAbove) this.#fresh += added.length;
    added.forEach(({ cell }) => cell !== null && this.#cells.add(cell));
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

  #find(text) {
    if (text === this.#search.text) return;
    this.#search.setText(text, this.#feed.window.lines);
    if (text && this.#search.step(-1)) this.#list.reveal(this.#search.current);
    this.#list.repaint();
    this.#showWords();
  }

  async #step(steps) {
    if (!this.#search.text) return;
    const isAbove = steps < 0 || !this.#search.found.length;
    if (!this.#search.step(steps) && !(isAbove && (await this.#findOlder()))) this.#search.wrap(steps);
    if (this.#search.current) this.#list.reveal(this.#search.current);
    this.#list.repaint();
    this.#showWords();
  }

  /** Looks above what is here; the kernel knows where, unless it filters: then the lines come page by page. */
  async #findOlder() {
    const query = this.#tools.query;
    if (query.text) {
      await this.#feed.loadOlder();
      return this.#search.step(-1);
    }
    let found = null;
    await this.#feed.inTurn(async () => {
      const question = { after: 0, before: this.#feed.window.lines[0]?.serial ?? null, limit: 1 };
      found = (await this.#ask(question, { ...query, text: this.#search.text, regex: false, case: false })).lines[0];
    });
    if (found) await this.#goTo(found[0]);
    return Boolean(found);
  }

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
    this.#showWords();
  }

  #showWords() {
    if (this.#list.follows) this.#fresh = 0;
    const isCounted = this.#fresh && this.#feed.window.reachesEnd;
    setText(this.#more, isCounted ? `↓ ${asCount(this.#fresh)} new` : "↓ Newest");
    setAttribute(this.#more, "hidden", this.#list.follows);
    setText(this.#note, this.#noteText());
    this.#tools.search.say(this.#search.tally);
  }

  #noticeNow() {
    const { dropped, reachesStart } = this.#feed.window;
    if (!dropped || !reachesStart) return null;
    const text = `${asCount(dropped)} older ${dropped === 1 ? "line is" : "lines are"} kept no more`;
    return this.#notice?.notice === text ? this.#notice : makeNotice(text);
  }

  #noteText() {
    const { lines, live, matches, isPartial } = this.#feed.window;
    const { size, text } = this.#context.selection;
    const who = size ? `rank${size === 1 ? "" : "s"} ${text}` : "all ranks";
    const isFiltered = Object.values(this.#tools.query).some(Boolean);
    const partly = isPartial ? "; the filter took long, so not all lines were looked at" : "";
    if (!lines.length && !live.length) {
      return isFiltered
        ? `No line of ${who} matches${partly}.`
        : `${size ? "Nothing was printed by" : "Nothing yet from"} ${who}.`;
    }
    return `${asCounted(Math.max(matches, lines.length), isFiltered ? "matching line" : "line")} of ${who}${partly}`;
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
    this.#showWords();
  }

  #toEnd() {
    if (this.#feed.window.reachesEnd) this.#list.follow();
    else this.#restart();
    this.#showWords();
  }

  #key = (event) => {
    if (event.target.closest("input, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const doing = {
      n: () => void this.#step(1),
      N: () => void this.#step(-1),
      "/": () => this.#tools.search.focus(),
      f: () => this.#toEnd(),
      w: () => this.#tools.toggle("wrap"),
      t: () => this.#tools.toggle("time"),
    }[event.key];
    if (!doing) return;
    event.preventDefault();
    event.stopPropagation();
    doing();
  };

  // Taking text along

  async #copy() {
    const marked = getSelection();
    const isMarked = !marked.isCollapsed && this.#scroller.contains(marked.anchorNode);
    await this.#telling("copied", async () => {
      const pieces = isMarked ? [marked.toString()] : await this.#allText();
      await copyText(pieces.join(""));
    });
  }

  async #download() {
    const { store, selection } = this.#context;
    const ranks = selection.size ? `-ranks-${selection.text.slice(0, 40)}` : "";
    await this.#telling("saved", async () =>
      saveFile(`${store.mesh?.name ?? "mesh"}${ranks}.log`, await this.#allText()),
    );
  }

  async #telling(done, act) {
    try {
      await act();
      this.#context.announce(`The log was ${done}.`);
    } catch (error) {
      this.#context.announce(`The log was not ${done}: ${error.message}`, "error");
    }
  }

  #allText() {
    const options = { isTimed: this.#tools.shows("time"), isRanked: this.#context.selection.size !== 1 };
    const said = (share) => this.#context.announce(`Reading the log: ${Math.round(share * 100)} %`);
    return logText((question) => this.#ask(question), options, said);
  }
}
