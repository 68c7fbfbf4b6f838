// @ts-check
/** A connection over a model that records, with a clock that the test moves. */
import assert from "node:assert/strict";
import { beforeEach, test } from "node:test";
import { Connection } from "../../../widgets/static/connection.js";
import { RequestError } from "../../../widgets/static/errors.js";

class Page extends EventTarget {
  visibilityState = "visible";
}

beforeEach(() => {
  Object.assign(globalThis, { document: new Page() });
});

/** @param {import("node:test").TestContext} t */
function connected(t, { expectsMore = false } = {}) {
  let now = 0;
  t.mock.method(performance, "now", () => now);
  t.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  /** @type {Map<string, (...values: any[]) => void>} */
  const listeners = new Map();
  const bench = {
    isUp: true,
    /** @type {any[]} */
    sent: [],
    /** @type {number[]} */
    states: [],
    /** @type {number | null} */
    silence: null,
    listeners,
    /** @param {string} kind */
    count: (kind) => bench.sent.filter((message) => message.kind === kind).length,
    /** @param {object} content */
    receive: (content) => listeners.get("msg:custom")?.(content, []),
    /** @param {number} seq */
    state: (seq, full = false) => bench.receive({ kind: "state", seq, full }),
    /** @param {number} seconds */
    pass(seconds) {
      for (let second = 0; second < seconds; second += 1) {
        now += 1000;
        t.mock.timers.tick(1000);
      }
    },
  };
  const model = {
    /** @param {any} message */
    send(message) {
      if (!bench.isUp) throw new Error("the kernel restarts");
      bench.sent.push(message);
    },
    /**
     * @param {string} event
     * @param {(...values: any[]) => void} listener
     */
    on: (event, listener) => void listeners.set(event, listener),
    /** @param {string} event */
    off: (event) => void listeners.delete(event),
    get: () => /** @type {any} */ (""),
  };
  const connection = new Connection(model, {
    onState: ({ seq }) => bench.states.push(seq),
    onSilence(seconds) {
      bench.silence = seconds;
    },
    expectsMore: () => expectsMore,
  });
  connection.open();
  return { connection, bench };
}

test("states arrive in order, and every tenth is acknowledged", (t) => {
  const { connection, bench } = connected(t);
  assert.equal(bench.count("open"), 1);
  bench.state(5); // before the full state
  bench.state(8, true);
  for (const seq of [9, 10, 11]) bench.state(seq);
  assert.deepEqual(bench.states, [8, 9, 10, 11]);
  assert.deepEqual(
    bench.sent.filter(({ kind }) => kind === "ack").map(({ seq }) => seq),
    [10],
  );
  connection.close();
});

test("a gap in the numbers opens the view again", (t) => {
  const { connection, bench } = connected(t);
  bench.state(1, true);
  bench.state(3);
  bench.state(4); // while the full state is on its way
  assert.deepEqual([bench.states, bench.count("open")], [[1], 2]);
  bench.state(5, true);
  assert.deepEqual(bench.states, [1, 5]);
  connection.close();
});

test("a reply settles its request, and other replies are ignored", async (t) => {
  const { connection, bench } = connected(t);
  const [first, second] = [connection.request("select", { sel: "0" }), connection.request("select", { sel: "x" })];
  const [{ id }, { id: other }] = bench.sent.slice(-2);
  bench.receive({ kind: "reply", id: -1, ok: true });
  bench.receive({ kind: "reply", id, ok: true, count: 1 });
  bench.receive({ kind: "reply", id: other, ok: false, error: "'x' is unknown" });
  assert.equal((await first).content.count, 1);
  await assert.rejects(second, new RequestError("'x' is unknown"));
  connection.close();
});

test("a request that is late, cannot be sent, or outlives the view is rejected", async (t) => {
  const { connection, bench } = connected(t);
  const late = connection.request("timeline", { cell: null }, { seconds: 3 });
  bench.pass(3);
  await assert.rejects(late, /no answer from the kernel within 3 s/);
  bench.isUp = false;
  await assert.rejects(connection.request("timeline", { cell: null }), /cannot be reached/);
  bench.isUp = true;
  const open = connection.request("timeline", { cell: null });
  connection.close();
  await assert.rejects(open, /the view was closed/);
  await assert.rejects(connection.request("timeline", { cell: null }), /the view was closed/);
  assert.equal(bench.sent.at(-1).kind, "close");
  assert.equal(bench.listeners.size, 0);
});

test("a kernel that does not answer is reported until it does", (t) => {
  const { connection, bench } = connected(t);
  bench.pass(5);
  assert.equal(bench.silence, null);
  bench.pass(1);
  assert.equal(bench.silence, 6);
  bench.state(3); // other views get states: this view's "open" was lost
  assert.deepEqual([bench.silence, bench.count("open")], [null, 2]);
  connection.close();
});

test("silence while a cell runs opens the view again", (t) => {
  const { connection, bench } = connected(t, { expectsMore: true });
  bench.state(1, true);
  bench.pass(10);
  assert.equal(bench.count("open"), 1);
  bench.pass(1);
  assert.equal(bench.count("open"), 2);
  connection.close();
});

test("a page that becomes visible, and a comm that changes, open the view again", (t) => {
  const { connection, bench } = connected(t);
  bench.state(1, true);
  document.dispatchEvent(new Event("visibilitychange"));
  assert.equal(bench.count("open"), 1);
  bench.pass(4);
  document.dispatchEvent(new Event("visibilitychange"));
  assert.equal(bench.count("open"), 2);
  bench.listeners.get("comm_live_update")?.();
  assert.equal(bench.count("open"), 2); // not answered yet
  bench.state(2, true);
  bench.listeners.get("comm_live_update")?.();
  assert.equal(bench.count("open"), 3);
  connection.close();
});
