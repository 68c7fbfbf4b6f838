// @ts-check
/** Values as people read them. Pure. */

const BYTES = ["B", "kB", "MB", "GB", "TB", "PB"];

/**
 * 1.2 GB for 1_234_000_000, 31 GB; like `format_bytes` in Python.
 *
 * @param {number} value
 */
export function asBytes(value) {
  let [amount, power] = [value, 0];
  while (amount >= 999.5 && power < BYTES.length - 1) [amount, power] = [amount / 1000, power + 1];
  return `${amount.toFixed(amount < 9.95 && power > 0 ? 1 : 0)} ${BYTES[power]}`;
}

/**
 * 12.5 s, 320 ms, 2:05 or 1:02:05.
 *
 * @param {number} value seconds
 * @returns {string}
 */
export function asSeconds(value) {
  if (value >= 60) return asClock(value);
  if (value >= 1 || value === 0) return `${threeDigits(value)} s`;
  return value >= 1e-3 ? `${threeDigits(value * 1e3)} ms` : `${threeDigits(value * 1e6)} µs`;
}

/**
 * 0:07, 2:05 or 1:02:05.
 *
 * @param {number} seconds
 */
export function asClock(seconds) {
  const whole = Math.floor(seconds);
  const parts = [Math.floor(whole / 60) % 60, whole % 60].map((part) => String(part).padStart(2, "0"));
  const hours = Math.floor(whole / 3600);
  return hours ? `${hours}:${parts.join(":")}` : parts.join(":").replace(/^0/, "");
}

/**
 * 4,096 for 4096.
 *
 * @param {number} value
 */
export function asCount(value) {
  return Math.round(value).toLocaleString("en");
}

/**
 * 1 rank, 4,096 ranks.
 *
 * @param {number} count
 * @param {string} word
 */
export function asCounted(count, word) {
  return `${asCount(count)} ${word}${count === 1 ? "" : "s"}`;
}

/**
 * A value in the unit of a channel; "–" if it is unknown.
 *
 * @param {number | null | undefined} value
 * @param {string} unit as in `ChannelSection`
 */
export function asValue(value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return "never";
  if (unit === "bytes") return asBytes(value);
  if (unit === "seconds") return value < 0 ? `−${asSeconds(-value)}` : asSeconds(value);
  if (unit === "share") return `${Math.round(value * 100)} %`;
  if (unit === "cores") return `${threeDigits(value)} ${value === 1 ? "core" : "cores"}`;
  return `${threeDigits(value)} ${unit}`.trim();
}

/**
 * Three significant digits, without trailing zeros: 12.5, 320, 0.02.
 *
 * @param {number} value
 */
function threeDigits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 100) return asCount(value);
  return String(Number(value.toPrecision(size >= 10 ? 3 : 2)));
}
