// @ts-check
/** The channels that can colour the grid, in the order of `CHANNELS` in protocol.py, and the curve of each. */

/** @import { Channel, Metric } from "./protocol.d.ts" */

/** @typedef {{metric: Metric, unit: string, title: string}} Curve */

/** @type {Curve} */
const CPU = { metric: "cpu", unit: "cores", title: "CPU" };
/** @type {Curve} */
const STEP = { metric: "step", unit: "seconds", title: "step" };

/** @type {{name: Channel, title: string, curve: Curve}[]} */
export const CHANNELS = [
  { name: "state", title: "State", curve: CPU },
  { name: "memory", title: "Memory", curve: { metric: "memory", unit: "bytes", title: "memory" } },
  { name: "cpu", title: "CPU", curve: CPU },
  { name: "gpu_memory", title: "GPU memory", curve: { metric: "gpu_memory", unit: "bytes", title: "GPU memory" } },
  { name: "gpu", title: "GPU use", curve: { metric: "gpu", unit: "share", title: "GPU" } },
  { name: "step", title: "Step time", curve: STEP },
  { name: "skew", title: "Behind the median", curve: STEP },
  { name: "queued", title: "Queued messages", curve: { metric: "queued", unit: "", title: "queued" } },
  { name: "age", title: "Last heartbeat", curve: CPU },
];

/**
 * The title of a channel.
 *
 * @param {Channel} name
 */
export function channelTitle(name) {
  return CHANNELS.find((channel) => channel.name === name)?.title ?? name;
}

/**
 * Whether the worst values of a channel are the highest or, as in `LOW_IS_WORSE` of worst.py, the lowest.
 *
 * @param {Channel} name
 */
export function extremeOf(name) {
  return name === "gpu" ? "Lowest" : "Highest";
}

/**
 * The curve of a rank that is shown beside a channel.
 *
 * @param {Channel} name
 */
export function curveFor(name) {
  return CHANNELS.find((channel) => channel.name === name)?.curve ?? CPU;
}
