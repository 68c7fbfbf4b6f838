"""The messages between the dashboard's Python and its JavaScript. Nothing else is here.

The model runs in the kernel. A view is one display of the widget, and there may be several; all views receive the same
states. Everything travels as custom messages of the widget, none as a synced trait: the front end does not throttle
them, the kernel handles them while a cell runs, and a notebook does not save them. Buffers are little-endian arrays.

Kernel to views: `StateMessage`, once a tick, `ReplyMessage`, to each request with an id, and `PictureMessage`.
Views to the kernel: the members of `ViewMessage`. Those with an id are requests; `ReplyTypes` has the reply to each.

`static/protocol.d.ts` is generated from this module: run `python -m meshbook.widgets.typescript` after a change here.
A view shows all text that comes from a rank as text, never as markup.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal, NotRequired, TypeAlias, TypedDict

from meshbook.runtime.telemetry.logsearch import LiveLine as LiveLogLine
from meshbook.runtime.telemetry.logsearch import LogLine as LogLine
from meshbook.runtime.telemetry.logsearch import LogQuery as LogQuery
from meshbook.runtime.telemetry.timeline_lanes import State as LaneState
from meshbook.runtime.telemetry.vitals import Metric


class RankState(IntEnum):
    """The state of a rank; each has a colour and a shape. Where several hold, the highest number wins."""

    IDLE = 0
    RUNNING = 1
    IN_COLLECTIVE = 2
    PAUSED = 3  # at a prompt, or in the debugger
    STARTING = 4
    ERROR = 5  # its last cell failed
    STUCK = 6  # still runs a cell that ended without its answer
    STALE = 7  # no heartbeat
    DEAD = 8


Channel = Literal["state", "memory", "cpu", "gpu_memory", "gpu", "step", "skew", "queued", "age"]
# The values that can colour the grid. "skew" is how much longer a rank's step takes than the median step, in seconds.
CHANNELS: Final[tuple[Channel, ...]] = ("state", "memory", "cpu", "gpu_memory", "gpu", "step", "skew", "queued", "age")

Action = Literal["interrupt", "kill", "restart", "heal", "stacks", "profile"]
ACTIONS: Final[tuple[Action, ...]] = ("interrupt", "kill", "restart", "heal", "stacks", "profile")

ACTIVE_HERTZ = 4.0  # ticks a second while something runs or changes
IDLE_HERTZ = 1.0  # otherwise; none after `QUIET_AFTER` seconds without an event, and none without views
QUIET_AFTER = 300.0  # seconds: each published message counts as activity, and a server may cull an idle kernel
MOST_UNACKNOWLEDGED = 40  # states, after which a view gets no more
ACKNOWLEDGED_EVERY = 10  # states


# -- states --------------------------------------------------------------------------

Dim: TypeAlias = tuple[str, int]
Frame: TypeAlias = tuple[str, str]
BufferName = Literal["states", "state_ranks", "state_values", "values", "value_ranks", "value_values"]


class MeshSection(TypedDict):
    """The mesh. A view starts anew with each of these.

    `dims` are names and sizes; ranks are numbered in row-major order of them. `host_of` has the index in `hosts` for
    each rank. `alive` is false once the mesh is down.
    """

    name: str
    dims: list[Dim]
    hosts: list[str]
    host_of: list[int]
    alive: bool


class ChannelSection(TypedDict):
    """The channel that colours the grid: its unit, and the ends of its scale."""

    name: Channel
    unit: str
    low: float
    high: float


class CellSection(TypedDict):
    """The cell that runs in the foreground, or else the first job.

    `seconds` since it began; the view keeps counting. `waits` describes what the cell waits for before it begins.
    `jobs` is the number of background jobs.
    """

    number: int | None
    title: str
    seconds: float
    ranks: str
    waits: str
    jobs: int
    interruptible: bool


class WorstEntry(TypedDict):
    """A rank that needs attention, at most five. `history`: the last five minutes in 60 points; null is unknown."""

    rank: int
    value: float | None
    text: str
    history: list[float | None]


class HostEntry(TypedDict):
    """The ranks of a host: how many, in which states, and what they use together. `memory` in bytes, `gpu` a share."""

    name: str
    ranks: int
    counts: dict[str, int]
    cpu: float | None
    memory: float | None
    gpu: float | None
    gpu_memory: float | None


class ActorEntry(TypedDict):
    """An actor: how many messages are queued for it, and the endpoint that it runs, or ""."""

    name: str
    queued: int
    endpoint: str


class ProcessEntry(TypedDict):
    """A worker process and its actors. `pid` is null while it is unknown."""

    rank: int
    pid: int | None
    actors: list[ActorEntry]


class HostProcesses(TypedDict):
    """The worker processes of a host."""

    host: str
    procs: list[ProcessEntry]


class StackEntry(TypedDict):
    """Ranks with the same stack. `frames` are (place, source line), the outermost first."""

    ranks: str
    title: str
    frames: list[Frame]


class StacksSection(TypedDict):
    """The stacks that were taken last. `at` is the time of day."""

    at: str
    groups: list[StackEntry]


class PauseEntry(TypedDict):
    """Ranks that wait for a person, for example "in the debugger", at a place such as "cell 9:14"."""

    ranks: str
    what: str
    place: str


class BarEntry(TypedDict):
    """A progress bar that ranks share. `fraction` is the median; `low` and `high` are the extremes; null is unknown."""

    text: str
    fraction: float | None
    ranks: str
    low: float | None
    high: float | None


class EventEntry(TypedDict):
    """An event of the mesh. `at` is the time of day."""

    at: str
    kind: str
    ranks: str
    text: str


class SelectedSection(TypedDict):
    """The ranks that all views have selected, and the selector that selected them."""

    sel: str
    ranks: str
    count: int


class Sections(TypedDict, total=False):
    """The parts of a state. Each replaces the one that the view had.

    `ranks` in them are texts such as "0-2,5", for people; they are selectors as well. `counts` has the number of ranks
    by the lower-case name of their `RankState`, without zeros. `topology` has at most 64 processes: the selected ones,
    or else the first. `events` has the last ten. `curves` is a number that grows while ranks log metrics.
    """

    mesh: MeshSection
    channel: ChannelSection
    counts: dict[str, int]
    cell: CellSection | None
    worst: list[WorstEntry]
    hosts: list[HostEntry]
    topology: list[HostProcesses]
    stacks: StacksSection | None
    pauses: list[PauseEntry]
    bars: list[BarEntry]
    events: list[EventEntry]
    selected: SelectedSection
    curves: int


class StateMessage(Sections):
    """What changed since the last state, or everything if `full`. A view that misses a number sends "open" again.

    `buffers` names the buffers of the message, in their order: "states" (uint8, a `RankState` for each rank) or
    "state_ranks" (uint32) and "state_values"; then "values" (float32 of the channel, NaN where unknown) or
    "value_ranks" and "value_values". A new channel comes with all its values; the channel "state" has none.
    """

    kind: Literal["state"]
    seq: int
    full: bool
    buffers: NotRequired[list[BufferName]]


# -- from a view ---------------------------------------------------------------------


class OpenMessage(TypedDict):
    """A view is shown, or has missed a state. The kernel sends a full state."""

    kind: Literal["open"]
    view: str


class CloseMessage(TypedDict):
    """A view is no longer shown."""

    kind: Literal["close"]
    view: str


class AckMessage(TypedDict):
    """A view has received this state. Sent for every tenth; a view that acknowledges none of forty gets no more."""

    kind: Literal["ack"]
    view: str
    seq: int


class ChannelMessage(TypedDict):
    """Colour the grid by this channel, in all views."""

    kind: Literal["channel"]
    name: Channel


class SelectMessage(TypedDict):
    """Select ranks in all views: a selector as in `%%mesh`, or "" for nothing."""

    kind: Literal["select"]
    id: int
    sel: str


class ActMessage(TypedDict):
    """Do something to ranks.

    `cell` is the number of the cell that the view shows, or null. Only that cell is interrupted: the message may arrive
    after its end.
    """

    kind: Literal["act"]
    id: int
    action: Action
    sel: str
    cell: int | None


class HistoryMessage(TypedDict):
    """Ask for the last minutes of these metrics."""

    kind: Literal["history"]
    id: int
    ranks: list[int]
    metrics: list[Metric]


class LogsMessage(TypedDict):
    """Ask for lines of the log.

    `after` 0: the newest lines. Otherwise the lines from this serial on: the `next` of the previous reply. `before`,
    with `after` 0: the newest lines before that serial. Serials begin at 1.
    """

    kind: Literal["logs"]
    id: int
    sel: str
    query: LogQuery
    after: int
    before: int | None
    limit: int


class TimelineMessage(TypedDict):
    """Ask for the timeline of a cell; null is the last cell."""

    kind: Literal["timeline"]
    id: int
    cell: int | None


CurveAxis = Literal["step", "time"]
CurveKey: TypeAlias = tuple[str, str, int]
MediumKey: TypeAlias = tuple[str, str, int, float]


class CurvesMessage(TypedDict):
    """Ask for curves, histograms and images over the ranks of a selector ("": all).

    `names`: those that the view shows. `runs`: how many runs of each metric, the latest. `axis` is that of x, `low` and
    `high` are limits on it; null is no limit. At most `points` points of each curve.

    `have`: the curves that the view has with these settings, as (metric, run, version), and `have_media` its histograms
    and images, as (name, run, rank, time). Only others come.
    """

    kind: Literal["curves"]
    id: int
    sel: str
    names: list[str]
    runs: int
    axis: CurveAxis
    low: float | None
    high: float | None
    points: int
    have: list[CurveKey]
    have_media: list[MediumKey]


ViewMessage: TypeAlias = (
    OpenMessage
    | CloseMessage
    | AckMessage
    | ChannelMessage
    | SelectMessage
    | ActMessage
    | HistoryMessage
    | LogsMessage
    | TimelineMessage
    | CurvesMessage
)


# -- replies -------------------------------------------------------------------------


class SelectReply(TypedDict):
    """The ranks that the selector means."""

    ranks: str
    count: int


class ActReply(TypedDict):
    """What was done. "profile" adds a page of HTML; the stacks of "stacks" come with the next state."""

    text: str
    html: NotRequired[str]


class HistoryReply(TypedDict):
    """The shape [ranks, metrics, points] of the buffer: float32, a value a second, the newest last."""

    seconds: int
    shape: list[int]


class LogsReply(TypedDict):
    """The lines that match, in order of arrival. Their text may have ANSI colours, which the query ignores.

    `first`: the serial of the oldest line that is kept; `end`: one past the newest; `next` below `end`: there are more.
    `dropped`: how many older lines were discarded. `matches`: how many lines match of those that were searched, beyond
    the limit, too; `partial`: the search ran out of time. `live`: unfinished lines as they are now, in place of those
    of the previous reply; empty with `before`.
    """

    lines: list[LogLine]
    live: list[LiveLogLine]
    first: int
    next: int
    end: int
    dropped: int
    matches: int
    partial: bool


TimelineSpan: TypeAlias = tuple[float, float, LaneState, str]


class TimelineLane(TypedDict):
    """What a rank did: spans of (start, end, state, name), in seconds since the cell began. Elsewhere it was idle."""

    label: str
    rank: int
    spans: list[TimelineSpan]


class TimelineReply(TypedDict):
    """The timeline of a cell. `open`: the cell still runs. `notes` are sentences for people."""

    cell: int
    seconds: float
    open: bool
    lanes: list[TimelineLane]
    notes: list[str]


LineKind = Literal["rank", "notebook", "straggler", "diverging", "invalid"]


class CurveLine(TypedDict):
    """A rank with a line of its own, and the reason for people; "" if it is like the others. Rank -1: the notebook."""

    rank: int
    kind: LineKind
    text: str


class CurveEntry(TypedDict):
    """The curve of a metric in a run, over `ranks` ranks; 0: of the notebook alone.

    `more` ranks that leave the others have no line.

    Two buffers: x (float64), then float32 of the shape [3 + lines, points]: mean, lowest, highest and the lines, NaN
    where nothing is known. Diverging ranks and the notebook are not in the first three.
    """

    metric: str
    run: str
    version: int
    points: int
    ranks: int
    lines: list[CurveLine]
    more: int


class ChartEntry(TypedDict):
    """The runs of a metric that its chart shows, the oldest first."""

    metric: str
    runs: list[str]


MediumKind = Literal["histogram", "image"]


class MediumEntry(TypedDict):
    """The last histogram or image of a rank under this name.

    An image has one buffer, a PNG. A histogram has two, as float64: the counts of its bins, and their edges.
    """

    name: str
    run: str
    rank: int
    kind: MediumKind
    step: float
    time: float


class CurvesReply(TypedDict):
    """All metrics and names of media, the charts that were asked for, and what has changed; its buffers in this order.

    A reply has a limited size. Unless it `is_complete`, there is more: ask again. It took the kernel `seconds`.
    """

    metrics: list[str]
    media_names: list[str]
    charts: list[ChartEntry]
    curves: list[CurveEntry]
    media: list[MediumEntry]
    is_complete: bool
    seconds: float


class EmptyReply(TypedDict):
    """Done; the reply has no content."""


Reply: TypeAlias = SelectReply | ActReply | HistoryReply | LogsReply | TimelineReply | CurvesReply | EmptyReply


class ReplyTypes(TypedDict):
    """The reply to each kind of request."""

    select: SelectReply
    act: ActReply
    history: HistoryReply
    logs: LogsReply
    timeline: TimelineReply
    curves: CurvesReply


class ReplyMessage(TypedDict):
    """The reply to the request with this id: these fields and those of a `Reply`, or an `error` if it is not `ok`."""

    kind: Literal["reply"]
    id: int | None
    ok: bool
    error: NotRequired[str]


class PictureMessage(TypedDict):
    """The state of the mesh as a picture for the notebook's file, by MIME type.

    It is sent after something has changed, a second or more after the last one.
    """

    kind: Literal["picture"]
    data: dict[str, str]
