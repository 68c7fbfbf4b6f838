/** How a view gets its lines of the log: what is asked of the kernel when, one question at a time. */

import { LINES_A_REQUEST, LogWindow } from "./logwindow.js";

const ASK_EVERY = 500; // milliseconds, at most: the kernel sends no more than two pieces of the log a second
const PAUSE = 4500; // milliseconds more, after a question that failed
const BEHIND = 10 * LINES_A_REQUEST; // lines: who follows and is so far behind goes on at the newest
const MOST_HELD = 90000; // lines: who reads further up gets no more below

export class LogFeed {
  window = new LogWindow();
  #ask;
  #reader;
  #on;
  #round = 0; // of questions: replies to those before are of other lines
  #older = null; // the question for older lines, while it is open
  #turn = Promise.resolve(); // of the last question
  #isAsking = false;
  #timer = 0;
  #askedAt = -Infinity;
  #isStopped = false;

  /**
   * `ask(question)` gives the kernel's reply. `reader` says whether it `follows` the end, or `isAtEnd` of what is here.
   * `on.cleared()`: the lines are others from now on; `on.took(added, isAbove)`: these have come; `on.failed(text)`: what
   * went wrong with the last question, or nothing.
   */
  constructor(ask, reader, on) {
    this.#ask = ask;
    this.#reader = reader;
    this.#on = on;
  }

  /** Begins anew at the newest lines, as others are wanted. */
  restart() {
    this.#begin();
    this.window.clear();
    this.#on.cleared();
    this.#askedAt = -Infinity;
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.askSoon();
  }

  /** Asks for new lines, as soon as it may. */
  askSoon() {
    if (this.#isStopped || this.#timer || this.#isAsking || !this.#wantsNewer()) return;
    const wait = Math.max(0, this.#askedAt + ASK_EVERY - performance.now());
    this.#timer = setTimeout(() => void this.#askNewer(), wait);
  }

  /** Puts a piece of what was printed before above; once, however often the reader asks meanwhile. */
  loadOlder() {
    this.#older ??= this.inTurn(() => this.#askOlder()).finally(() => (this.#older = null));
    return this.#older;
  }

  /** Has the lines around this one, which may be far from those that are here. */
  async moveTo(serial) {
    this.#begin();
    this.window.moveTo(serial);
    this.#on.cleared();
    await this.inTurn(() => this.#takeAnswer());
    await this.loadOlder();
  }

  /** One question at a time: replies come in the order in which they join the lines. */
  inTurn(ask) {
    this.#turn = this.#turn.then(() => this.#tell(ask));
    return this.#turn;
  }

  stop() {
    this.#isStopped = true;
    clearTimeout(this.#timer);
    this.#begin();
  }

  #begin() {
    this.#round += 1;
  }

  // Who reads further up has what is below him already, or has no use for it yet.
  #wantsNewer() {
    const { lines, reachesEnd } = this.window;
    return this.#reader.follows || this.#reader.isAtEnd || (reachesEnd && lines.length < MOST_HELD);
  }

  async #askNewer() {
    this.#timer = 0;
    this.#askedAt = performance.now();
    await this.inTurn(() => this.#takeAnswer());
    if (!this.window.reachesEnd) this.askSoon();
  }

  async #takeAnswer() {
    const round = this.#round;
    const question = this.window.newerQuestion;
    const reply = await this.#ask(question);
    if (round !== this.#round) return;
    if (reply.end < question.after) return this.restart(); // the log has begun anew, as of a mesh that was brought up again
    const added = this.window.takeNewer(reply);
    if (this.#reader.follows && reply.end - reply.next > BEHIND) this.restart();
    else this.#on.took(added, false);
  }

  async #askOlder() {
    if (this.window.reachesStart || !this.window.lines.length) return;
    const round = this.#round;
    const reply = await this.#ask(this.window.olderQuestion);
    if (round === this.#round) this.#on.took(this.window.takeOlder(reply), true);
  }

  async #tell(ask) {
    this.#isAsking = true;
    const round = this.#round;
    let trouble = "";
    try {
      await ask();
    } catch (error) {
      trouble = error.message;
    }
    this.#isAsking = false;
    if (round !== this.#round) return this.askSoon(); // lines are wanted that this was not about
    if (trouble) this.#askedAt = performance.now() + PAUSE; // the same question will hardly do better at once
    this.#on.failed(trouble);
  }
}
