// @ts-check
/** Text that leaves the page: to the clipboard, or into a file. */

const RELEASED_AFTER = 10000; // milliseconds, within which the browser starts to save

/**
 * Copies text to the clipboard. Throws if the browser does not allow it.
 *
 * @param {string} text
 */
export async function copyText(text) {
  if (navigator.clipboard?.writeText) {
    await navigator.clipboard.writeText(text);
    return;
  }
  copyByCommand(text); // a page that was not loaded by https has no clipboard object
}

/** @param {string} text */
function copyByCommand(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.style.position = "fixed";
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  if (!isCopied) throw new Error("the browser does not allow this page to copy");
}

/**
 * Has the browser save a file that consists of these pieces of text.
 *
 * @param {string} name
 * @param {string[]} pieces
 */
export function saveFile(name, pieces) {
  const address = URL.createObjectURL(new Blob(pieces, { type: "text/plain;charset=utf-8" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), RELEASED_AFTER);
}
