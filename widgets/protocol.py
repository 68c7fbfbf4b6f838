"""What the dashboard's Python and its JavaScript say to each other: the words, and nothing else.

The model lives in the kernel and is small; a view (there may be several) has only what it was told.
Everything travels as custom messages of the widget, none as a synced trait: they are not throttled by the front end,
are handled while a cell runs, and nothing of them is saved in the notebook. Buffers are little-endian arrays.

Kernel to views
    {"kind": "state", "seq": 7, "full": false, ...sections}, buffers as `buffers` names them, in that order
        Once a tick, to all views; `full` has every section, else those that have changed. A view that misses a number
        asks with "open" again. Sections (each replaces what the view had of it; "ranks" are texts for people, "0-2,5",
        which are selectors as well):
        "mesh"      {"name", "dims": [["hosts", 2], ["gpus", 8]], "hosts": ["node1", ...], "host_of": [0, 0, 1, ...],
                     "alive": true}; with it the view begins anew. Ranks are numbered in row-major order of dims.
        "buffers"   ["states"] or ["state_ranks", "state_values"], then ["values"] or ["value_ranks", "value_values"]:
                    states: uint8, a `State` for each rank; or uint32 ranks that have changed, and their uint8 states.
                    values: float32 of the channel that is shown, NaN where not known; or uint32 ranks and float32.
                    With another "channel" all its values come; "state" has none.
        "channel"   {"name": "memory", "unit": "bytes", "low": 0, "high": 1e9}: of `values`; the ends of its scale
        "counts"    {"idle": 6, "running": 2}: ranks by the lower-case name of their `State`, none that are 0
        "cell"      null, or {"number": 9, "title": "cell 9", "seconds": 3.2, "ranks": "0-7", "waits": "", "jobs": 1,
                    "interruptible": true}: what runs in the foreground, or the first job; the view counts on
        "worst"     [{"rank": 3, "value": 12.5, "text": "others have waited 12 s for it", "history": [...]}, ...]: at
                    most five. "value" is null where not known; history: the last 5 minutes in 60 points, null where
                    not known
        "hosts"     [{"name", "ranks": 8, "counts": {...}, "cpu": 3.2, "memory": 1e9, "gpu": 0.9, "gpu_memory": 1e9}]
        "topology"  [{"host", "procs": [{"rank", "pid", "actors": [{"name", "queued", "endpoint"}]}]}]: of at most 64
                    processes: those that are selected, or else the first
        "stacks"    null, or {"at": "12:01:03", "groups": [{"ranks": "0-2,5", "title": "main thread: in all_reduce",
                    "frames": [["cell 9:14", "dist.all_reduce(x)"], ...]}]}
        "pauses"    [{"ranks": "3", "what": "in the debugger", "place": "cell 9:14"}]
        "bars"      [{"text": "train  60% 6/10", "fraction": 0.6, "ranks": "0-7", "low": 0.5, "high": 0.7}]
        "events"    [{"at": "12:01:03", "kind": "healed", "ranks": "3", "text": "..."}]: the last ten
        "selected"  {"sel": "failed", "ranks": "3,7", "count": 2}: what all views have selected
    {"kind": "reply", "id": 12, "ok": true, ...}, or {..., "ok": false, "error": "what to do"}: to a request with an id

Views to the kernel
    {"kind": "open", "view": "ab12"}    a view is shown: answered by a full state. Also after a gap in the numbers.
    {"kind": "close", "view": "ab12"}   it is not shown any more
    {"kind": "ack", "view", "seq"}      every tenth state; a view that acknowledges none of forty gets no more
    {"kind": "channel", "name"}         show this channel: one of `CHANNELS`
    and, each with an "id", answered by a reply:
    {"kind": "select", "sel": "0-3"}    a selector as in `%%mesh`, or "" for nothing. Reply: {"ranks": "0-3",
                                        "count": 4}, or what was not understood
    {"kind": "act", "action", "sel", "cell": 9}
                                        one of `ACTIONS` on these ranks. Reply: {"text": "what was done"}; of "stacks"
                                        the section comes with the next state; of "profile" {"html": "..."} beside it.
                                        "cell": the number that the view shows, or null: no other one is interrupted,
                                        for what a view says may wait until its cell has ended
    {"kind": "history", "ranks": [3], "metrics": ["memory", "cpu"]}
                                        Reply: {"seconds": 300, "shape": [ranks, metrics, points]}, buffer float32: a
                                        value a second, the newest last
    {"kind": "logs", "sel", "query": {"text": "loss", "regex": false, "case": false, "stream": "stderr" or "", "cell": 9
     or null}, "after": 0, "before": null, "limit": 500}
                                        Reply: {"lines": [[serial, seconds since 1970, rank, stream, cell, text], ...],
                                        "first": 17, "next": 930, "end": 930, "dropped": 0, "matches": 12,
                                        "partial": false, "live": [[rank, stream, cell, text], ...]}: those that match,
                                        in order of arrival; text may be ANSI-coloured, and is matched without. Serials
                                        begin at 1. "after" 0: the newest lines, where a view begins; more: those from
                                        this serial on, for which a view sends the "next" of the reply before. "before"
                                        (and not "after"): the newest lines before that serial, to scroll back. "first"
                                        and "end": the oldest line that is kept, and one past the newest; "next" below
                                        "end": there is more. "dropped": so many lines are kept no more. "matches":
                                        how many lines match of all that were looked at, those beyond the limit too;
                                        "partial": not all were, for want of time. "live": rows and lines without an end
                                        as they are now, in place of those of the reply before; only with no "before"
    {"kind": "timeline", "cell": null}  the last cell, or that one. Reply: {"cell": 9, "seconds": 3.2, "lanes":
                                        [{"label": "rank 0", "rank": 0, "spans": [[start, end, kind, name], ...]}]},
                                        in seconds; kind is one of `LANES`; where there is no span it is idle.
                                        "cell" may be one that runs ("open": true), and "notes" are for a person

All text that came from a rank is shown as text, never as markup.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal


class State(IntEnum):
    """How a rank is; each has a colour and a shape. The first that holds, from the end of the list."""

    IDLE = 0
    RUNNING = 1
    IN_COLLECTIVE = 2
    PAUSED = 3  # at a prompt, or in the debugger
    STARTING = 4
    ERROR = 5  # its last cell has failed
    STUCK = 6  # a cell has ended without its answer, and it still runs that
    STALE = 7  # it gives no sign of life
    DEAD = 8


Channel = Literal["state", "memory", "cpu", "gpu_memory", "gpu", "step", "skew", "queued", "age"]
# What may colour the grid; "skew" is how much longer a rank's step takes than the median, in seconds.
CHANNELS: Final[tuple[Channel, ...]] = ("state", "memory", "cpu", "gpu_memory", "gpu", "step", "skew", "queued", "age")

Action = Literal["interrupt", "kill", "restart", "heal", "stacks", "profile"]
ACTIONS: Final[tuple[Action, ...]] = ("interrupt", "kill", "restart", "heal", "stacks", "profile")

Lane = Literal["running", "collective", "waiting", "transfer", "idle"]
LANES: Final[tuple[Lane, ...]] = ("running", "collective", "waiting", "transfer", "idle")

ACTIVE_HERTZ = 4.0  # ticks a second while something runs or changes
IDLE_HERTZ = 1.0  # else; and none once nothing has happened for `QUIET_AFTER`, or nobody looks
QUIET_AFTER = 300.0  # seconds: all that is published counts as activity, and a kernel that is idle may be culled
MOST_UNACKNOWLEDGED = 40  # states
ACKNOWLEDGED_EVERY = 10
