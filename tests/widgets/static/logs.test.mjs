// @ts-check
/** The log without a page: control sequences, the window of lines, the search, the requests, the text for a file. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { plainText, stylesAfter } from "../../../widgets/static/ansi.js";
import { LogFeed } from "../../../widgets/static/logfeed.js";
import { guessHeight } from "../../../widgets/static/logrows.js";
import { logText } from "../../../widgets/static/logtext.js";
import { LINES_A_REQUEST, LogSearch, LogWindow, patternOf } from "../../../widgets/static/logwindow.js";

/**
 * @import { LogQuestion } from "../../../widgets/static/logwindow.js"
 * @import { LogLine, LogsReply } from "../../../widgets/static/protocol.d.ts"
 */

const RED = "\x1b[31m";
const BOLD = "\x1b[1m";

/**
 * @param {number} serial
 * @param {Partial<{rank: number, text: string}>} [line]
 * @returns {LogLine}
 */
function line(serial, { rank = 0, text = `line ${serial}` } = {}) {
  return [serial, serial / 10, rank, "stdout", 9, text];
}

/**
 * @param {LogLine[]} lines
 * @param {Partial<LogsReply>} [more]
 * @returns {LogsReply}
 */
function reply(lines, more = {}) {
  const next = (lines.at(-1)?.[0] ?? 0) + 1;
  return { lines, live: [], first: 1, next, end: next, dropped: 0, matches: lines.length, partial: false, ...more };
}

/**
 * @param {number} first
 * @param {number} last
 */
function lines(first, last) {
  return Array.from({ length: last - first + 1 }, (_, index) => line(first + index));
}

/**
 * A kernel with a log of lines 1 to `last`.
 *
 * @param {number} last
 */
function kernel(last) {
  const made = {
    last,
    /** @type {LogQuestion[]} */
    questions: [],
    /**
     * @param {LogQuestion} question
     * @returns {Promise<LogsReply>}
     */
    async ask(question) {
      const { after, before, limit } = question;
      made.questions.push(question);
      const end = made.last + 1;
      if (before !== null) return reply(lines(Math.max(1, before - limit), before - 1), { end, next: end });
      const first = after || Math.max(1, end - limit);
      const until = Math.min(made.last, first + limit - 1);
      return reply(lines(first, until), { end, next: until + 1, matches: end - (after || 1) });
    },
  };
  return made;
}

test("plain text has no control sequences", () => {
  assert.equal(plainText(`${RED}red\x1b[0m`), "red");
  assert.equal(plainText("\x1b]0;title\x07a\x1b[2Kb\x1b(Bc\x1b=d\x07"), "abcd");
  assert.equal(plainText("cut \x1b"), "cut ");
  assert.equal(plainText("a\tb <b>"), "a\tb <b>");
});

test("styles last until a reset", () => {
  assert.deepEqual(stylesAfter([RED], "plain"), [RED]);
  assert.deepEqual(stylesAfter([RED], `${BOLD}bold`), [RED, BOLD]);
  assert.deepEqual(stylesAfter([RED], "\x1b[0m"), []);
  assert.deepEqual(stylesAfter([RED], "\x1b[m"), []);
  assert.deepEqual(stylesAfter([RED], "\x1b[0;1m"), ["\x1b[0;1m"]);
  assert.equal(stylesAfter([], RED.repeat(40)).length, 16);
});

test("a window grows at both ends and knows where the log ends", () => {
  const window = new LogWindow();
  assert.deepEqual(window.newerQuestion, { after: 0, before: null, limit: LINES_A_REQUEST });
  window.takeNewer(reply(lines(1001, 1000 + LINES_A_REQUEST), { matches: 1500 }));
  assert.deepEqual([window.reachesStart, window.reachesEnd, window.matches], [false, true, 1500]);
  assert.equal(window.newerQuestion.after, 1001 + LINES_A_REQUEST);
  assert.deepEqual(window.olderQuestion, { after: 0, before: 1001, limit: LINES_A_REQUEST });
  window.takeOlder(reply(lines(900, 1000)));
  assert.deepEqual([window.lines[0].serial, window.reachesStart], [900, true]);
  window.takeNewer(reply([line(1501)], { end: 1600, next: 1502, matches: 99 }));
  assert.deepEqual([window.lines.at(-1)?.serial, window.reachesEnd, window.matches], [1501, false, 1599]);
  window.moveTo(50);
  assert.deepEqual([window.lines, window.newerQuestion.after, window.reachesEnd], [[], 50, false]);
});

test("colours continue in the next line of the same rank", () => {
  const window = new LogWindow();
  const printed = [line(1, { text: `${RED}red` }), line(2, { rank: 1 }), line(3, { text: "still" })];
  window.takeNewer(reply(printed, { live: [[0, "stdout", 9, "60 %"]] }));
  assert.deepEqual(
    window.lines.map(({ styles, plain }) => [styles, plain]),
    [
      [[], "red"],
      [[], "line 2"],
      [[RED], "still"],
    ],
  );
  assert.deepEqual([window.live[0].isLive, window.live[0].styles, window.live[0].serial], [true, [RED], null]);
});

test("a search steps, wraps, and keeps its place", () => {
  const window = new LogWindow();
  window.takeNewer(reply(lines(1, 30)));
  const search = new LogSearch();
  assert.equal(search.matchCount, "");
  search.setText("LINE 2", window.lines);
  assert.equal(search.matchCount, "11 found");
  assert.ok(search.step(-1));
  assert.equal(search.matchCount, "11 of 11");
  assert.ok(!search.step(1));
  search.wrap(1);
  assert.equal(search.current?.serial, 2);
  search.add(window.takeNewer(reply([line(31, { text: "line 2!" })])));
  assert.equal(search.matchCount, "1 of 12");
  search.keepWithin(window.lines.slice(10));
  assert.equal(search.matchCount, "11 found");
  assert.ok(search.step(1));
  assert.equal(search.current?.serial, 20);
  search.setText("(", window.lines);
  assert.equal(search.matchCount, "not found");
  assert.ok(patternOf("a.b").test("A.B"));
  assert.ok(!patternOf("a.b").test("axb"));
});

test("heights of wrapped lines are estimated", () => {
  const window = new LogWindow();
  const [long] = window.takeNewer(reply([line(1, { text: "x".repeat(300) })]));
  assert.equal(guessHeight(long, false, 840), 18);
  assert.equal(guessHeight(long, true, 840), 18 * 3);
  assert.equal(guessHeight({ notice: "x".repeat(300) }, true, 840), 18);
});

test("a file has all lines up to the end at its start, with time and rank if wanted", async () => {
  const log = kernel(4500);
  const pieces = await logText(
    async (question) => {
      const answer = await log.ask(question);
      log.last += 1; // a rank keeps printing
      return { ...answer, dropped: 7 };
    },
    { isTimed: false, isRanked: true },
    () => assert.fail("too early for a report"),
  );
  const text = pieces.join("").split("\n");
  assert.deepEqual([text[0], text[1], text.at(-2)], ["(7 older lines were discarded)", "[0] line 1", "[0] line 4500"]);
  const [, timed] = await logText(kernel(1).ask, { isTimed: true, isRanked: false }, () => {}).then((all) => [
    "",
    ...all,
  ]);
  assert.equal(timed, "1970-01-01T00:00:00.100Z line 1\n");
});

/**
 * @param {import("node:test").TestContext} t
 * @param {number} last
 */
function feeding(t, last) {
  let now = 0;
  t.mock.method(performance, "now", () => now);
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const log = kernel(last);
  const reader = { follows: true, isAtEnd: true };
  /** @type {unknown[]} */
  const events = [];
  const feed = new LogFeed((question) => log.ask(question), reader, {
    cleared: () => events.push("cleared"),
    added: (added, isAbove) => events.push([added.length, isAbove]),
    failed: (text) => text && events.push(text),
  });
  /** @param {number} milliseconds */
  const pass = async (milliseconds) => {
    now += milliseconds;
    t.mock.timers.tick(milliseconds);
    await feed.inTurn(async () => {});
  };
  return { log, reader, events, feed, pass };
}

test("a feed asks for new lines at most twice a second, and for older ones on demand", async (t) => {
  const { log, events, feed, pass } = feeding(t, 1200);
  feed.restart();
  await pass(0);
  assert.deepEqual(events, ["cleared", [500, false]]);
  log.last += 3;
  feed.askSoon();
  await pass(400);
  assert.equal(log.questions.length, 1);
  await pass(100);
  assert.deepEqual(events.slice(2), [[3, false]]);
  await Promise.all([feed.loadOlder(), feed.loadOlder()]);
  assert.deepEqual(events.slice(3), [[500, true]]);
  assert.equal(feed.window.lines.length, 1003);
  feed.stop();
});

test("a feed restarts where the log is another one, or where a reader is far behind", async (t) => {
  const { log, events, feed, pass } = feeding(t, 1000);
  feed.restart();
  await pass(0);
  log.last = 2; // the mesh was started again
  feed.askSoon();
  await pass(500);
  await pass(500);
  assert.deepEqual(
    feed.window.lines.map(({ serial }) => serial),
    [1, 2],
  );
  log.last = 20_000;
  feed.askSoon();
  await pass(500);
  await pass(500);
  assert.equal(feed.window.lines.at(-1)?.serial, 20_000);
  assert.equal(events.filter((event) => event === "cleared").length, 3);
  feed.stop();
});

test("a feed reports a failure and asks again later", async (t) => {
  const { log, events, feed, pass } = feeding(t, 10);
  const { ask } = log;
  log.ask = async () => {
    throw new Error("not a regular expression");
  };
  feed.restart();
  await pass(0);
  assert.deepEqual(events, ["cleared", "not a regular expression"]);
  log.ask = ask;
  feed.askSoon();
  await pass(4999);
  assert.equal(events.length, 2);
  await pass(1);
  assert.deepEqual(events.at(-1), [10, false]);
  feed.stop();
});

test("a feed that moves shows the lines around a serial", async (t) => {
  const { feed, pass, reader } = feeding(t, 9000);
  feed.restart();
  await pass(0);
  reader.follows = false;
  reader.isAtEnd = false;
  await feed.moveTo(4000);
  assert.equal(feed.window.lines[0].serial, 3500);
  assert.equal(feed.window.lines.at(-1)?.serial, 4499);
  assert.ok(!feed.window.reachesEnd);
  feed.stop();
});
