/** All lines of a log as plain text, for the clipboard or a file: asked of the kernel in pages. */

import { plainText } from "./ansi.js";

const LINES_A_PAGE = 2000;
const TOLD_EVERY = 10; // pages

/**
 * Pieces of text, one a page. `ask(question)` gives a reply to "logs"; `told(share)` is called now and then with how
 * far it is. What is printed after this has begun is left out, or a rank that prints without end would never let it end.
 */
export async function logText(ask, { isTimed, isRanked }, told) {
  const pieces = [];
  let [after, end] = [1, Infinity];
  for (let page = 1; after < end; page++) {
    const reply = await ask({ after, before: null, limit: LINES_A_PAGE });
    if (end === Infinity) end = reply.end;
    if (pieces.length === 0 && reply.dropped) pieces.push(`(${reply.dropped} older lines are kept no more)\n`);
    pieces.push(
      reply.lines
        .filter(([serial]) => serial < end)
        .map((line) => asText(line, isTimed, isRanked))
        .join(""),
    );
    if (!(reply.next > after)) break;
    after = reply.next;
    if (page % TOLD_EVERY === 0) told(Math.min(1, after / end));
  }
  return pieces;
}

function asText([, seconds, rank, , , text], isTimed, isRanked) {
  const time = isTimed ? `${new Date(seconds * 1000).toISOString()} ` : "";
  return `${time}${isRanked ? `[${rank}] ` : ""}${plainText(text)}\n`;
}
