/** What may colour the grid, in the order of `CHANNELS` in protocol.py, and the curve that goes with each. */

const CPU = { metric: "cpu", unit: "cores", title: "CPU" };
const STEP = { metric: "step", unit: "seconds", title: "step" };

export const CHANNELS = [
  { name: "state", title: "State", curve: CPU },
  { name: "memory", title: "Memory", curve: { metric: "memory", unit: "bytes", title: "memory" } },
  { name: "cpu", title: "CPU", curve: CPU },
  { name: "gpu_memory", title: "GPU memory", curve: { metric: "gpu_memory", unit: "bytes", title: "GPU memory" } },
  { name: "gpu", title: "GPU use", curve: { metric: "gpu", unit: "share", title: "GPU" } },
  { name: "step", title: "Step time", curve: STEP },
  { name: "skew", title: "Behind the median", curve: STEP },
  { name: "queued", title: "Queued messages", curve: { metric: "queued", unit: "", title: "queued" } },
  { name: "age", title: "Last sign of life", curve: CPU },
];

/** What a channel is called, by its name. */
export function channelTitle(name) {
  return CHANNELS.find((channel) => channel.name === name)?.title ?? name;
}

/** The curve that is shown of a rank beside this channel: {metric, unit, title}. */
export function curveFor(name) {
  return CHANNELS.find((channel) => channel.name === name)?.curve ?? CPU;
}
