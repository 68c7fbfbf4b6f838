// @ts-check
/** All lines of a log as plain text, for the clipboard or a file; requested from the kernel in pages. */

import { plainText } from "./ansi.js";

/**
 * @import { LogQuestion } from "./logwindow.js"
 * @import { LogLine, LogsReply } from "./protocol.d.ts"
 */

const LINES_A_PAGE = 2000;
const REPORTED_EVERY = 10; // pages

/** @typedef {{isTimed: boolean, isRanked: boolean}} LogTextOptions whether lines begin with their time and rank */

/**
 * Pieces of text, one a page. Later lines are left out: otherwise a rank that keeps printing would never let this end.
 *
 * @param {(question: LogQuestion) => Promise<LogsReply>} ask
 * @param {LogTextOptions} options
 * @param {(share: number) => void} report called now and then with the progress, from 0 to 1
 */
export async function logText(ask, options, report) {
  /** @type {string[]} */
  const pieces = [];
  let [after, end] = [1, Infinity];
  for (let page = 1; after < end; page++) {
    const reply = await ask({ after, before: null, limit: LINES_A_PAGE });
    if (end === Infinity) end = reply.end;
    if (pieces.length === 0 && reply.dropped) pieces.push(`(${reply.dropped} older lines were discarded)\n`);
    pieces.push(
      reply.lines
        .filter(([serial]) => serial < end)
        .map((line) => asText(line, options))
        .join(""),
    );
    if (!(reply.next > after)) break;
    after = reply.next;
    if (page % REPORTED_EVERY === 0) report(Math.min(1, after / end));
  }
  return pieces;
}

/**
 * @param {LogLine} line
 * @param {LogTextOptions} options
 */
function asText([, seconds, rank, , , text], { isTimed, isRanked }) {
  const time = isTimed ? `${new Date(seconds * 1000).toISOString()} ` : "";
  return `${time}${isRanked ? `[${rank}] ` : ""}${plainText(text)}\n`;
}
