// @ts-check
/** One view's connection to the kernel: open, acknowledge, detect gaps and silence, match replies to requests. */

import { RequestError } from "./errors.js";

/**
 * @import { Answer, Model, RequestFields, RequestKind } from "./context.d.ts"
 * @import { ReplyMessage, StateMessage, ViewMessage } from "./protocol.d.ts"
 */

const ACKNOWLEDGED_EVERY = 10; // states; as in protocol.py
const REPLY_WITHIN = 30; // seconds, unless a request has a limit of its own
const SILENT_AFTER = 10; // seconds without a state while something runs, after which the view sends "open" again
const OPENED_WITHIN = 5; // seconds for the answer to "open"
const STALE_AFTER = 3; // seconds without a message, after which a page that becomes visible sends "open" again

const COMM = "comm_live_update"; // of ipywidgets: the comm is live, or is lost because the kernel was restarted

/**
 * @typedef {object} PendingRequest
 * @property {(answer: any) => void} resolve
 * @property {(error: RequestError) => void} reject
 * @property {ReturnType<typeof setTimeout>} timer
 */

/**
 * @typedef {object} Listeners
 * @property {(content: StateMessage, buffers: DataView[]) => void} onState each state, in order
 * @property {(seconds: number | null) => void} onSilence how long the kernel has not answered; null: it answers again
 * @property {() => boolean} expectsMore whether something runs, so that states should come
 */

function closed() {
  return new RequestError("the view was closed");
}

export class Connection {
  #model;
  #listeners;
  #view = crypto.randomUUID?.() ?? Math.random().toString(16).slice(2); // a page without https has no randomUUID
  #nextId = Math.floor(Math.random() * 2 ** 31); // random: all views of a page receive each other's replies
  /** @type {Map<number | null, PendingRequest>} */
  #pending = new Map();
  /** @type {number | null} */
  #seq = null;
  #receivedAt = 0;
  /** @type {number | null} */
  #openedAt = null; // when "open" was sent, while it is not answered
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #timer;
  #isClosed = false;

  /**
   * @param {Model} model
   * @param {Listeners} listeners
   */
  constructor(model, listeners) {
    this.#model = model;
    this.#listeners = listeners;
  }

  open() {
    this.#model.on("msg:custom", this.#receive);
    this.#model.on(COMM, this.#commChanged);
    document.addEventListener("visibilitychange", this.#visibilityChanged);
    this.#timer = setInterval(this.#checkSilence, 1000);
    this.#sendOpen();
  }

  close() {
    this.#isClosed = true;
    clearInterval(this.#timer);
    document.removeEventListener("visibilitychange", this.#visibilityChanged);
    this.#model.off("msg:custom", this.#receive);
    this.#model.off(COMM, this.#commChanged);
    for (const id of [...this.#pending.keys()]) this.#settle(id, (pending) => pending.reject(closed()));
    this.send({ kind: "close", view: this.#view });
  }

  /**
   * Sends a message without an answer. Returns whether it was sent: JupyterLab throws while a kernel restarts.
   *
   * @param {ViewMessage} message
   */
  send(message) {
    try {
      this.#model.send(message);
      return true;
    } catch {
      return false; // `#checkSilence` notices the missing answer
    }
  }

  /**
   * Sends a request. Rejects with a RequestError if it is refused, cannot be sent, or is not answered in time.
   *
   * @template {RequestKind} K
   * @param {K} kind
   * @param {RequestFields<K>} fields
   * @param {{seconds?: number}} [options]
   * @returns {Promise<Answer<K>>}
   */
  request(kind, fields, { seconds = REPLY_WITHIN } = {}) {
    if (this.#isClosed) return Promise.reject(closed());
    this.#nextId += 1;
    const id = this.#nextId;
    return new Promise((resolve, reject) => {
      const late = () => reject(new RequestError(`no answer from the kernel within ${seconds} s`));
      const timer = setTimeout(() => this.#settle(id, late), seconds * 1000);
      this.#pending.set(id, { resolve, reject, timer });
      const lost = () => reject(new RequestError("the kernel cannot be reached; it may be starting"));
      const message = /** @type {ViewMessage} */ (/** @type {unknown} */ ({ kind, id, ...fields }));
      if (!this.send(message)) this.#settle(id, lost);
    });
  }

  /**
   * @param {StateMessage | ReplyMessage | undefined} content
   * @param {DataView[]} [buffers]
   */
  #receive = (content, buffers = []) => {
    if (content?.kind === "state") this.#receiveState(content, buffers);
    else if (content?.kind === "reply") this.#receiveReply(content, buffers);
  };

  /**
   * @param {StateMessage} content
   * @param {DataView[]} buffers
   */
  #receiveState(content, buffers) {
    this.#endSilence();
    if (!content.full && (this.#seq === null || content.seq !== this.#seq + 1)) {
      if (this.#seq !== null || !this.#isOpening()) this.#sendOpen();
      this.#seq = null;
      return;
    }
    this.#seq = content.seq;
    if (content.full) this.#openedAt = null;
    if (content.seq % ACKNOWLEDGED_EVERY === 0) this.send({ kind: "ack", view: this.#view, seq: content.seq });
    this.#listeners.onState(content, buffers);
  }

  /**
   * @param {ReplyMessage} content
   * @param {DataView[]} buffers
   */
  #receiveReply(content, buffers) {
    this.#endSilence();
    const refused = () => new RequestError(content.error || "the kernel rejected the request");
    this.#settle(content.id, (pending) =>
      content.ok ? pending.resolve({ content, buffers }) : pending.reject(refused()),
    );
  }

  /**
   * @param {number | null} id
   * @param {(pending: PendingRequest) => void} how
   */
  #settle(id, how) {
    const pending = this.#pending.get(id);
    if (!pending) return; // of another view, or late
    clearTimeout(pending.timer);
    this.#pending.delete(id);
    how(pending);
  }

  /** After a restart the kernel does not know this view, and sends it nothing. */
  #commChanged = () => {
    if (this.#openedAt === null) this.#sendOpen();
  };

  /** Whether an answer to "open" may still come. If other views get states and this one does not, its "open" was lost. */
  #isOpening() {
    return this.#openedAt !== null && (performance.now() - this.#openedAt) / 1000 <= OPENED_WITHIN;
  }

  #sendOpen() {
    this.#openedAt = performance.now();
    this.send({ kind: "open", view: this.#view });
  }

  #endSilence() {
    this.#receivedAt = performance.now();
    this.#listeners.onSilence(null);
  }

  #silentSeconds() {
    return (performance.now() - this.#receivedAt) / 1000;
  }

  /** Runs once a second. */
  #checkSilence = () => {
    if (this.#openedAt !== null) {
      if (!this.#isOpening()) this.#listeners.onSilence((performance.now() - this.#openedAt) / 1000);
    } else if (this.#silentSeconds() > SILENT_AFTER && this.#listeners.expectsMore()) this.#sendOpen();
  };

  /** The kernel stops sending to views that do not acknowledge states, as those of a hidden page. */
  #visibilityChanged = () => {
    if (document.visibilityState === "visible" && this.#silentSeconds() > STALE_AFTER) this.#sendOpen();
  };
}
