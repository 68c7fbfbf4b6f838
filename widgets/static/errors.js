// @ts-check
/** Errors whose message is for people. */

/** A request that the kernel refused or did not answer; the message says what to do. */
export class RequestError extends Error {}

/**
 * The message of whatever was thrown.
 *
 * @param {unknown} error
 */
export function messageOf(error) {
  return error instanceof Error ? error.message : String(error);
}
