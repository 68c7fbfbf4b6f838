/**
 * The panels below the grid, in the order of their tabs.
 *
 * A panel is made by `makeXPanel(context)` -> {title, element, update(changed), dispose?()}:
 *   update(changed)  `changed` is a Set of what is new: names of sections, "states", "values", "theme" (draw anew), and
 *                    "shown" when the panel comes into view. Called once a frame at most, and only while it is shown.
 *   badge?()         a short text beside the title, empty for none; asked whenever something changed.
 *   dispose?()       the view is closed.
 * The context:
 *   store            what is known of the mesh (store.js)
 *   request(kind, fields, {seconds}) -> Promise<{content, buffers}>; throws RequestError, whose message is for people
 *   send(content)    a message without an answer
 *   selection        the selected ranks: `.ranks`, `.sel`, `.text`, `.size`, `.has(rank)`, `.choose(sel)`, `.chooseRanks([3])`
 *   theme            `.colour("state-running")`, `.dark`
 *   show(title)      brings that panel into view and moves the focus there
 *   showProfile(html)  shows what a profile has found, in the panel of that name
 *   announce(text, kind)  says something in the status line; kind "error" or "info". Returns what takes it back
 */

import { makeEventsPanel } from "./events.js";
import { makeLogsPanel } from "./logs.js";
import { makePausedPanel } from "./paused.js";
import { makeProfilePanel } from "./profile.js";
import { makeProgressPanel } from "./progress.js";
import { makeStacksPanel } from "./stacks.js";
import { makeTimelinePanel } from "./timeline.js";
import { makeTopologyPanel } from "./topology.js";

export const PANELS = [
  makeLogsPanel,
  makeTimelinePanel,
  makeStacksPanel,
  makePausedPanel,
  makeProgressPanel,
  makeTopologyPanel,
  makeEventsPanel,
  makeProfilePanel,
];
