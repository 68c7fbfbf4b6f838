// @ts-check
/** Requests lines of the log from the kernel, one question at a time. */

import { messageOf } from "./errors.js";
import { LINES_A_REQUEST, LogWindow } from "./logwindow.js";

/**
 * @import { FinishedLine, LogQuestion } from "./logwindow.js"
 * @import { LogsReply } from "./protocol.d.ts"
 */

/**
 * @typedef {object} FeedListeners
 * @property {() => void} cleared the lines were discarded
 * @property {(added: FinishedLine[], isAbove: boolean) => void} added lines were added
 * @property {(text: string) => void} failed the last question failed; "": it did not
 */

const ASK_EVERY = 500; // milliseconds: the kernel sends at most two pages of the log a second
const PAUSE = 4500; // milliseconds more, after a question that failed
const BEHIND = 10 * LINES_A_REQUEST; // lines; a reader at the end that is further behind skips to the newest
const MOST_HELD = 90000; // lines; beyond that, a reader further up gets no lines below

export class LogFeed {
  window = new LogWindow();
  #ask;
  #reader;
  #listeners;
  #generation = 0; // replies to questions of an earlier generation are discarded
  /** @type {Promise<void> | null} while older lines are requested */
  #older = null;
  #queue = Promise.resolve(); // of the last question
  #isAsking = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #askedAt = -Infinity;
  #isStopped = false;

  /**
   * @param {(question: LogQuestion) => Promise<LogsReply>} ask
   * @param {{follows: boolean, isAtEnd: boolean}} reader whether it follows the end, or is at the end of these lines
   * @param {FeedListeners} listeners
   */
  constructor(ask, reader, listeners) {
    this.#ask = ask;
    this.#reader = reader;
    this.#listeners = listeners;
  }

  /** Starts anew at the newest lines, after a change of the filter or the selection. */
  restart() {
    this.#startGeneration();
    this.window.clear();
    this.#listeners.cleared();
    this.#askedAt = -Infinity;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.askSoon();
  }

  /** Asks for new lines as soon as the rate limit allows. */
  askSoon() {
    if (this.#isStopped || this.#timer || this.#isAsking || !this.#wantsNewer()) return;
    const wait = Math.max(0, this.#askedAt + ASK_EVERY - performance.now());
    this.#timer = setTimeout(() => void this.#askNewer(), wait);
  }

  /** Adds a page of older lines above. Calls while it is under way have no effect. */
  loadOlder() {
    this.#older ??= this.inTurn(() => this.#askOlder()).finally(() => {
      this.#older = null;
    });
    return this.#older;
  }

  /**
   * Replaces the lines by those around a serial.
   *
   * @param {number} serial
   */
  async moveTo(serial) {
    this.#startGeneration();
    this.window.moveTo(serial);
    this.#listeners.cleared();
    await this.inTurn(() => this.#loadNewer());
    await this.loadOlder();
  }

  /**
   * Asks after the questions before, since replies have to be added in order.
   *
   * @param {() => Promise<void>} ask
   */
  inTurn(ask) {
    this.#queue = this.#queue.then(() => this.#guard(ask));
    return this.#queue;
  }

  stop() {
    this.#isStopped = true;
    clearTimeout(this.#timer);
    this.#startGeneration();
  }

  #startGeneration() {
    this.#generation += 1;
  }

  // A reader further up has the lines below already, or does not need them yet.
  #wantsNewer() {
    const { lines, reachesEnd } = this.window;
    return this.#reader.follows || this.#reader.isAtEnd || (reachesEnd && lines.length < MOST_HELD);
  }

  async #askNewer() {
    this.#timer = undefined;
    this.#askedAt = performance.now();
    await this.inTurn(() => this.#loadNewer());
    if (!this.window.reachesEnd) this.askSoon();
  }

  async #loadNewer() {
    const generation = this.#generation;
    const question = this.window.newerQuestion;
    const reply = await this.#ask(question);
    if (generation !== this.#generation) return;
    if (reply.end < question.after) return this.restart(); // the log is another one, of a mesh that was started again
    const added = this.window.takeNewer(reply);
    if (this.#reader.follows && reply.end - reply.next > BEHIND) this.restart();
    else this.#listeners.added(added, false);
  }

  async #askOlder() {
    if (this.window.reachesStart || !this.window.lines.length) return;
    const generation = this.#generation;
    const reply = await this.#ask(this.window.olderQuestion);
    if (generation === this.#generation) this.#listeners.added(this.window.takeOlder(reply), true);
  }

  /** @param {() => Promise<void>} ask */
  async #guard(ask) {
    this.#isAsking = true;
    const generation = this.#generation;
    let failure = "";
    try {
      await ask();
    } catch (error) {
      failure = messageOf(error);
    }
    this.#isAsking = false;
    if (generation !== this.#generation) return this.askSoon(); // other lines are needed now
    if (failure) this.#askedAt = performance.now() + PAUSE; // the same question would probably fail again
    this.#listeners.failed(failure);
  }
}
