// @ts-check
/** The panels below the grid, in the order of their tabs. `Panel` and `Context` in context.d.ts say what they get. */

import { makeCurvesPanel } from "./curves.js";
import { makeEventsPanel } from "./events.js";
import { makeLogsPanel } from "./logs.js";
import { makePausedPanel } from "./paused.js";
import { makeProfilePanel } from "./profile.js";
import { makeProgressPanel } from "./progress.js";
import { makeStacksPanel } from "./stacks.js";
import { makeTimelinePanel } from "./timeline.js";
import { makeTopologyPanel } from "./topology.js";

/** @import { Context, Panel } from "./context.d.ts" */

/** @type {((context: Context) => Panel)[]} */
export const PANELS = [
  makeLogsPanel,
  (context) => makeCurvesPanel(context),
  makeTimelinePanel,
  makeStacksPanel,
  makePausedPanel,
  makeProgressPanel,
  makeTopologyPanel,
  makeEventsPanel,
  makeProfilePanel,
];
