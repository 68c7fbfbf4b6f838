/** The panel that shows what the selected ranks print: filtered by the kernel, searched and drawn here. */

import { element, setAttribute, setText } from "./dom.js";
import { guessHeight, makeLogRow, makeNotice } from "./logrows.js";
import { LINES_A_REQUEST, LogSearch, LogWindow } from "./logwindow.js";
import { makeLogTools } from "./logtools.js";
import { logText } from "./logtext.js";
import { selectorOf } from "./ranks.js";
import { copyText, saveFile } from "./saving.js";
import { asCount } from "./units.js";
import { VirtualList } from "./virtual.js";

const POLL_EVERY = 500; // milliseconds, at most: the kernel sends no more than two pieces of the log a second
const BEHIND = 10 * LINES_A_REQUEST; // lines: who follows and is so far behind goes on at the newest
const MOST_HELD = 90000; // lines: who reads further up gets no more below

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
  #window = new LogWindow();
  #search = new LogSearch();
  #tools;
  #list;
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
  #round = 0; // of questions: replies to those before are of other lines
  #older = null; // the question for older lines, while it is open
  #turn = Promise.resolve(); // of the last question
  #isAsking = false;
  #timer = 0;
  #askedAt = -Infinity;
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
      onScroll: (isAtEnd) => this.#scrolled(isAtEnd),
    });
    const frame = element("div", { class: "meshbook-log-frame" }, this.#scroller, this.#more);
    const foot = element("div", { class: "meshbook-log-foot" }, this.#note, ...this.#tools.below);
    const keys = { keydown: this.#key };
    this.element = element("div", { class: "meshbook-pane meshbook-log", on: keys }, this.#tools.element, frame, foot);
    this.#restyle();
  }

  update(changed) {
    const { store, selection } = this.#context;
    if (!store.mesh) return;
    const sel = selection.size ? selectorOf(selection.ranks, store.size) : "all";
    if (sel !== this.#sel || changed.has("mesh")) {
      this.#sel = sel;
      this.#restart();
    }
    this.#tools.setCells(this.#cells, store.cell?.number);
    this.#pollSoon();
  }

  dispose() {
    clearTimeout(this.#timer);
    this.#list.dispose();
    this.#round += 1;
  }

  // Asking

  #ask(question, query = this.#tools.query) {
    return this.#context.request("logs", { sel: this.#sel, query, ...question }).then(({ content }) => content);
  }

  #restart() {
    this.#round += 1;
    this.#window.clear();
    this.#search.setText(this.#search.text, []);
    this.#fresh = 0;
    this.#list.follow();
    this.#askedAt = -Infinity;
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#pollSoon();
  }

  #pollSoon() {
    if (this.#timer || this.#isAsking) return;
    const wait = Math.max(0, this.#askedAt + POLL_EVERY - performance.now());
    this.#timer = setTimeout(() => void this.#poll(), wait);
  }

  async #poll() {
    this.#timer = 0;
    if (!this.#list.follows && this.#window.lines.length > MOST_HELD) return;
    const round = this.#round;
    this.#askedAt = performance.now();
    await this.#asking(async () => {
      const reply = await this.#ask(this.#window.newerQuestion);
      if (round === this.#round) this.#takeNewer(reply);
    });
    if (round !== this.#round || !this.#window.reachesEnd) this.#pollSoon();
  }

  /** One question at a time: replies come in the order in which they join the lines. */
  #asking(ask) {
    this.#turn = this.#turn.then(() => this.#askNow(ask));
    return this.#turn;
  }

  async #askNow(ask) {
    this.#isAsking = true;
    const round = this.#round;
    try {
      await ask();
      if (round === this.#round) this.#tools.complain("");
    } catch (error) {
      if (round === this.#round) this.#tools.complain(error.message);
    }
    this.#isAsking = false;
    if (round !== this.#round) this.#pollSoon();
  }

  #takeNewer(reply) {
    const added = this.#window.takeNewer(reply);
    if (this.#list.follows && reply.end - reply.next > BEHIND) {
      this.#restart();
      return;
    }
    this.#search.add(added);
    this.#search.keepWithin(this.#window.lines);
    if (!this.#list.follows) this.#fresh += added.length;
    added.forEach(({ cell }) => cell !== null && this.#cells.add(cell));
    this.#show();
  }

  /** Puts a piece of what was printed before above; once, however often the reader asks meanwhile. */
  #loadOlder() {
    this.#older ??= this.#asking(() => this.#takeOlder()).finally(() => (this.#older = null));
    return this.#older;
  }

  async #takeOlder() {
    if (this.#window.reachesStart || !this.#window.lines.length) return;
    const round = this.#round;
    const reply = await this.#ask(this.#window.olderQuestion);
    if (round !== this.#round) return;
    this.#search.add(this.#window.takeOlder(reply), true);
    this.#search.keepWithin(this.#window.lines);
    this.#show();
  }

  // Searching

  #find(text) {
    if (text === this.#search.text) return;
    this.#search.setText(text, this.#window.lines);
    if (text && this.#search.step(-1)) this.#list.reveal(this.#search.current);
    this.#list.repaint();
    this.#show();
  }

  async #step(steps) {
    if (!this.#search.text) return;
    const isAbove = steps < 0 || !this.#search.found.length;
    if (!this.#search.step(steps) && !(isAbove && (await this.#findOlder()))) this.#search.wrap(steps);
    if (this.#search.current) this.#list.reveal(this.#search.current);
    this.#list.repaint();
    this.#show();
  }

  /** Looks above what is here; the kernel knows where, unless it filters: then the lines come page by page. */
  async #findOlder() {
    const query = this.#tools.query;
    if (query.text) {
      await this.#loadOlder();
      return this.#search.step(-1);
    }
    let found = null;
    await this.#asking(async () => {
      const question = { after: 0, before: this.#window.lines[0]?.serial ?? null, limit: 1 };
      found = (await this.#ask(question, { ...query, text: this.#search.text, regex: false, case: false })).lines[0];
    });
    if (found) await this.#moveTo(found[0]);
    return Boolean(found);
  }

  /** Goes to a line that may be far from those that are here. */
  async #moveTo(serial) {
    this.#round += 1;
    this.#window.moveTo(serial);
    this.#search.setText(this.#search.text, []);
    this.#list.follows = false;
    await this.#asking(async () => this.#takeNewer(await this.#ask(this.#window.newerQuestion)));
    await this.#loadOlder();
    this.#search.current = this.#window.lines.find((line) => line.serial === serial) ?? null;
    this.#fresh = 0;
  }

  // Showing

  #show() {
    const { lines, live, reachesEnd } = this.#window;
    this.#notice = this.#noticeNow();
    this.#list.setItems([...(this.#notice ? [this.#notice] : []), ...lines, ...(reachesEnd ? live : [])]);
    if (this.#list.follows) this.#fresh = 0;
    this.#tools.search.say(this.#search.tally);
    setAttribute(this.#more, "hidden", this.#list.follows);
    setText(this.#more, this.#fresh && reachesEnd ? `↓ ${asCount(this.#fresh)} new` : "↓ Newest");
    setText(this.#note, this.#noteText());
  }

  #noticeNow() {
    const { dropped, reachesStart } = this.#window;
    if (!dropped || !reachesStart) return null;
    const text = `${asCount(dropped)} older ${dropped === 1 ? "line is" : "lines are"} kept no more`;
    return this.#notice?.notice === text ? this.#notice : makeNotice(text);
  }

  #noteText() {
    const { lines, live, matches, isPartial } = this.#window;
    const { size, text } = this.#context.selection;
    const who = size ? `rank${size === 1 ? "" : "s"} ${text}` : "all ranks";
    const isFiltered = Object.values(this.#tools.query).some(Boolean);
    const partly = isPartial ? "; the filter took long, so not all lines were looked at" : "";
    if (!lines.length && !live.length) {
      return isFiltered
        ? `No line of ${who} matches${partly}.`
        : `${size ? "Nothing was printed by" : "Nothing yet from"} ${who}.`;
    }
    return `${asCount(Math.max(matches, lines.length))} ${isFiltered ? "matching " : ""}lines of ${who}${partly}`;
  }

  #restyle() {
    this.#scroller.classList.toggle("meshbook-log-timed", this.#tools.shows("time"));
    this.#scroller.classList.toggle("meshbook-log-wrapped", this.#tools.shows("wrap"));
    this.#list.remake();
  }

  #scrolled(isAtEnd) {
    if (isAtEnd && this.#window.reachesEnd) this.#list.follow();
    else if (isAtEnd) this.#pollSoon();
    if (this.#list.isAtTop) void this.#loadOlder();
    this.#show();
  }

  #toEnd() {
    if (this.#window.reachesEnd) this.#list.follow();
    else this.#restart();
    this.#show();
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
