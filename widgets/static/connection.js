/** One view's talk with the kernel: opening, acknowledging, gaps in the numbers, requests and their replies, silence. */

const ACKNOWLEDGED_EVERY = 10; // states; as in protocol.py
const REPLY_WITHIN = 30; // seconds, unless a request says otherwise
const SILENT_AFTER = 10; // seconds without a state while something runs: then the kernel is asked
const ANSWER_WITHIN = 5; // seconds that it has to answer "open"

const COMM = "comm_live_update"; // of ipywidgets: the way to the kernel is there, or is gone since it was restarted

/** What was asked for cannot be had; the message says what to do. */
export class RequestError extends Error {}

function closed() {
  return new RequestError("the view was closed");
}

export class Connection {
  #model;
  #view = crypto.randomUUID?.() ?? Math.random().toString(16).slice(2);
  #next = Math.floor(Math.random() * 2 ** 31); // views of one page hear each other's replies: their ids must differ
  #waiting = new Map(); // id -> {resolve, reject, timer}
  #seq = null;
  #heardAt = 0;
  #askedAt = null; // when "open" was sent and is not answered yet
  #onState;
  #onSilence;
  #expectsMore;
  #timer;
  #isClosed = false;

  /**
   * `onState(content, buffers)` for each state in order; `onSilence(seconds or null)`: the kernel does not answer, or does
   * again; `expectsMore()`: whether the kernel should be heard now, because something runs.
   */
  constructor(model, { onState, onSilence, expectsMore }) {
    this.#model = model;
    this.#onState = onState;
    this.#onSilence = onSilence;
    this.#expectsMore = expectsMore;
  }

  open() {
    this.#model.on("msg:custom", this.#receive);
    this.#model.on(COMM, this.#wonder);
    document.addEventListener("visibilitychange", this.#look);
    this.#timer = setInterval(this.#listen, 1000);
    this.#ask();
  }

  close() {
    this.#isClosed = true;
    clearInterval(this.#timer);
    document.removeEventListener("visibilitychange", this.#look);
    this.#model.off("msg:custom", this.#receive);
    this.#model.off(COMM, this.#wonder);
    for (const id of [...this.#waiting.keys()])
      this.#settle(id, (call) => call.reject(closed()));
    this.send({ kind: "close", view: this.#view });
  }

  /** A message without an answer; whether it could be sent. JupyterLab throws while a kernel is restarted. */
  send(content) {
    try {
      this.#model.send(content);
      return true;
    } catch {
      return false; // that nobody answers is seen by `#listen`, and told
    }
  }

  /** The reply to a request, as {content, buffers}. Throws RequestError: refused, or no answer within `seconds`. */
  request(kind, fields = {}, { seconds = REPLY_WITHIN } = {}) {
    if (this.#isClosed) return Promise.reject(closed());
    const id = (this.#next += 1);
    return new Promise((resolve, reject) => {
      const late = () => reject(new RequestError(`no answer from the kernel within ${seconds} s`));
      const timer = setTimeout(() => this.#settle(id, late), seconds * 1000);
      this.#waiting.set(id, { resolve, reject, timer });
      const lost = () => reject(new RequestError("there is no way to the kernel; it may be starting"));
      if (!this.send({ kind, id, ...fields })) this.#settle(id, lost);
    });
  }

  #receive = (content, buffers = []) => {
    if (content?.kind === "state") this.#takeState(content, buffers);
    else if (content?.kind === "reply") this.#takeReply(content, buffers);
  };

  #takeState(content, buffers) {
    this.#heard();
    if (!content.full && (this.#seq === null || content.seq !== this.#seq + 1)) {
      if (this.#seq !== null || !this.#isAsking()) this.#ask();
      this.#seq = null;
      return;
    }
    this.#seq = content.seq;
    if (content.full) this.#askedAt = null;
    if (content.seq % ACKNOWLEDGED_EVERY === 0) this.send({ kind: "ack", view: this.#view, seq: content.seq });
    this.#onState(content, buffers);
  }

  #takeReply(content, buffers) {
    this.#heard();
    const refused = () => new RequestError(content.error || "the kernel refused, and did not say why");
    this.#settle(content.id, (call) => (content.ok ? call.resolve({ content, buffers }) : call.reject(refused())));
  }

  #settle(id, how) {
    const call = this.#waiting.get(id);
    if (!call) return; // of another view, or late
    clearTimeout(call.timer);
    this.#waiting.delete(id);
    how(call);
  }

  /** The kernel may have been restarted: then it knows nothing of this view, and does not answer. */
  #wonder = () => {
    if (this.#askedAt === null) this.#ask();
  };

  /** Whether "open" may still be answered. Where others are told and this view is not, what it asked was lost. */
  #isAsking() {
    return this.#askedAt !== null && (performance.now() - this.#askedAt) / 1000 <= ANSWER_WITHIN;
  }

  #ask() {
    this.#askedAt = performance.now();
    this.send({ kind: "open", view: this.#view });
  }

  #heard() {
    this.#heardAt = performance.now();
    this.#onSilence(null);
  }

  /** Once a second: is the kernel still there? */
  #listen = () => {
    const now = performance.now();
    const silent = (now - this.#heardAt) / 1000;
    if (this.#askedAt !== null) {
      if (!this.#isAsking()) this.#onSilence((now - this.#askedAt) / 1000);
    } else if (silent > SILENT_AFTER && this.#expectsMore()) this.#ask();
  };

  /** A page that was hidden for long may have been left out: the kernel stops sending to who does not acknowledge. */
  #look = () => {
    if (document.visibilityState === "visible" && performance.now() - this.#heardAt > 3000) this.#ask();
  };
}
