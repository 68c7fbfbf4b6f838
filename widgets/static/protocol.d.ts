// Generated from protocol.py by `python -m meshbook.widgets.typescript`. Do not edit.

/** A line that may still change. */
export type LiveLogLine = [rank: number, stream: string, cell: number | null, text: string];

/** A line as it is shown. `at`: seconds since 1970; `cell`: the number of the cell that caused it, or None. */
export type LogLine = [serial: number, at: number, rank: number, stream: string, cell: number | null, text: string];

/**
 * A query for lines. Empty `text`: all lines; empty `stream`: both; `cell` None: of all cells and of none.
 *
 * `regex`: the text is a regular expression of the package `regex`. `case`: match case. Colours are ignored.
 */
export interface LogQuery {
  text?: string;
  regex?: boolean;
  case?: boolean;
  stream?: string;
  cell?: number | null;
}

export type LaneState = "running" | "collective" | "transfer" | "waiting" | "idle";

export type Metric = "cpu" | "memory" | "gpu_memory" | "gpu" | "gpu_allocated" | "gpu_peak" | "gpu_reserved" | "gpu_free" | "gpu_power" | "gpu_temperature" | "step" | "queued" | "sent" | "received" | "bytes_sent" | "bytes_received";

export type Channel = "state" | "memory" | "cpu" | "gpu_memory" | "gpu" | "step" | "skew" | "queued" | "age";

export type Action = "interrupt" | "kill" | "restart" | "heal" | "stacks" | "profile";

export type Dim = [string, number];

export type Frame = [string, string];

export type BufferName = "states" | "state_ranks" | "state_values" | "values" | "value_ranks" | "value_values";

/**
 * The mesh. A view starts anew with each of these.
 *
 * `dims` are names and sizes; ranks are numbered in row-major order of them. `host_of` has the index in `hosts` for
 * each rank. `alive` is false once the mesh is down.
 */
export interface MeshSection {
  name: string;
  dims: Dim[];
  hosts: string[];
  host_of: number[];
  alive: boolean;
}

/** The channel that colours the grid: its unit, and the ends of its scale. */
export interface ChannelSection {
  name: Channel;
  unit: string;
  low: number;
  high: number;
}

/**
 * The cell that runs in the foreground, or else the first job.
 *
 * `seconds` since it began; the view keeps counting. `waits` describes what the cell waits for before it begins.
 * `jobs` is the number of background jobs.
 */
export interface CellSection {
  number: number | null;
  title: string;
  seconds: number;
  ranks: string;
  waits: string;
  jobs: number;
  interruptible: boolean;
}

/** A rank that needs attention, at most five. `history`: the last five minutes in 60 points; null is unknown. */
export interface WorstEntry {
  rank: number;
  value: number | null;
  text: string;
  history: (number | null)[];
}

/** The ranks of a host: how many, in which states, and what they use together. `memory` in bytes, `gpu` a share. */
export interface HostEntry {
  name: string;
  ranks: number;
  counts: Record<string, number>;
  cpu: number | null;
  memory: number | null;
  gpu: number | null;
  gpu_memory: number | null;
}

/** An actor: how many messages are queued for it, and the endpoint that it runs, or "". */
export interface ActorEntry {
  name: string;
  queued: number;
  endpoint: string;
}

/** A worker process and its actors. `pid` is null while it is unknown. */
export interface ProcessEntry {
  rank: number;
  pid: number | null;
  actors: ActorEntry[];
}

/** The worker processes of a host. */
export interface HostProcesses {
  host: string;
  procs: ProcessEntry[];
}

/** Ranks with the same stack. `frames` are (place, source line), the outermost first. */
export interface StackEntry {
  ranks: string;
  title: string;
  frames: Frame[];
}

/** The stacks that were taken last. `at` is the time of day. */
export interface StacksSection {
  at: string;
  groups: StackEntry[];
}

/** Ranks that wait for a person, for example "in the debugger", at a place such as "cell 9:14". */
export interface PauseEntry {
  ranks: string;
  what: string;
  place: string;
}

/** A progress bar that ranks share. `fraction` is the median; `low` and `high` are the extremes; null is unknown. */
export interface BarEntry {
  text: string;
  fraction: number | null;
  ranks: string;
  low: number | null;
  high: number | null;
}

/** An event of the mesh. `at` is the time of day. */
export interface EventEntry {
  at: string;
  kind: string;
  ranks: string;
  text: string;
}

/** The ranks that all views have selected, and the selector that selected them. */
export interface SelectedSection {
  sel: string;
  ranks: string;
  count: number;
}

/**
 * The parts of a state. Each replaces the one that the view had.
 *
 * `ranks` in them are texts such as "0-2,5", for people; they are selectors as well. `counts` has the number of ranks
 * by the lower-case name of their `RankState`, without zeros. `topology` has at most 64 processes: the selected ones,
 * or else the first. `events` has the last ten. `curves` is a number that grows while ranks log metrics.
 */
export interface Sections {
  mesh?: MeshSection;
  channel?: ChannelSection;
  counts?: Record<string, number>;
  cell?: CellSection | null;
  worst?: WorstEntry[];
  hosts?: HostEntry[];
  topology?: HostProcesses[];
  stacks?: StacksSection | null;
  pauses?: PauseEntry[];
  bars?: BarEntry[];
  events?: EventEntry[];
  selected?: SelectedSection;
  curves?: number;
}

/**
 * What changed since the last state, or everything if `full`. A view that misses a number sends "open" again.
 *
 * `buffers` names the buffers of the message, in their order: "states" (uint8, a `RankState` for each rank) or
 * "state_ranks" (uint32) and "state_values"; then "values" (float32 of the channel, NaN where unknown) or
 * "value_ranks" and "value_values". A new channel comes with all its values; the channel "state" has none.
 */
export interface StateMessage {
  mesh?: MeshSection;
  channel?: ChannelSection;
  counts?: Record<string, number>;
  cell?: CellSection | null;
  worst?: WorstEntry[];
  hosts?: HostEntry[];
  topology?: HostProcesses[];
  stacks?: StacksSection | null;
  pauses?: PauseEntry[];
  bars?: BarEntry[];
  events?: EventEntry[];
  selected?: SelectedSection;
  curves?: number;
  kind: "state";
  seq: number;
  full: boolean;
  buffers?: BufferName[];
}

/** A view is shown, or has missed a state. The kernel sends a full state. */
export interface OpenMessage {
  kind: "open";
  view: string;
}

/** A view is no longer shown. */
export interface CloseMessage {
  kind: "close";
  view: string;
}

/** A view has received this state. Sent for every tenth; a view that acknowledges none of forty gets no more. */
export interface AckMessage {
  kind: "ack";
  view: string;
  seq: number;
}

/** Colour the grid by this channel, in all views. */
export interface ChannelMessage {
  kind: "channel";
  name: Channel;
}

/** Select ranks in all views: a selector as in `%%mesh`, or "" for nothing. */
export interface SelectMessage {
  kind: "select";
  id: number;
  sel: string;
}

/**
 * Do something to ranks.
 *
 * `cell` is the number of the cell that the view shows, or null. Only that cell is interrupted: the message may arrive
 * after its end.
 */
export interface ActMessage {
  kind: "act";
  id: number;
  action: Action;
  sel: string;
  cell: number | null;
}

/** Ask for the last minutes of these metrics. */
export interface HistoryMessage {
  kind: "history";
  id: number;
  ranks: number[];
  metrics: Metric[];
}

/**
 * Ask for lines of the log.
 *
 * `after` 0: the newest lines. Otherwise the lines from this serial on: the `next` of the previous reply. `before`,
 * with `after` 0: the newest lines before that serial. Serials begin at 1.
 */
export interface LogsMessage {
  kind: "logs";
  id: number;
  sel: string;
  query: LogQuery;
  after: number;
  before: number | null;
  limit: number;
}

/** Ask for the timeline of a cell; null is the last cell. */
export interface TimelineMessage {
  kind: "timeline";
  id: number;
  cell: number | null;
}

export type CurveAxis = "step" | "time";

export type CurveKey = [string, string, number];

export type MediumKey = [string, string, number, number];

/**
 * Ask for curves, histograms and images over the ranks of a selector ("": all).
 *
 * `names`: those that the view shows. `runs`: how many runs of each metric, the latest. `axis` is that of x, `low` and
 * `high` are limits on it; null is no limit. At most `points` points of each curve.
 *
 * `have`: the curves that the view has with these settings, as (metric, run, version), and `have_media` its histograms
 * and images, as (name, run, rank, time). Only others come.
 */
export interface CurvesMessage {
  kind: "curves";
  id: number;
  sel: string;
  names: string[];
  runs: number;
  axis: CurveAxis;
  low: number | null;
  high: number | null;
  points: number;
  have: CurveKey[];
  have_media: MediumKey[];
}

export type ViewMessage = OpenMessage | CloseMessage | AckMessage | ChannelMessage | SelectMessage | ActMessage | HistoryMessage | LogsMessage | TimelineMessage | CurvesMessage;

/** The ranks that the selector means. */
export interface SelectReply {
  ranks: string;
  count: number;
}

/** What was done. "profile" adds a page of HTML; the stacks of "stacks" come with the next state. */
export interface ActReply {
  text: string;
  html?: string;
}

/** The shape [ranks, metrics, points] of the buffer: float32, a value a second, the newest last. */
export interface HistoryReply {
  seconds: number;
  shape: number[];
}

/**
 * The lines that match, in order of arrival. Their text may have ANSI colours, which the query ignores.
 *
 * `first`: the serial of the oldest line that is kept; `end`: one past the newest; `next` below `end`: there are more.
 * `dropped`: how many older lines were discarded. `matches`: how many lines match of those that were searched, beyond
 * the limit, too; `partial`: the search ran out of time. `live`: unfinished lines as they are now, in place of those
 * of the previous reply; empty with `before`.
 */
export interface LogsReply {
  lines: LogLine[];
  live: LiveLogLine[];
  first: number;
  next: number;
  end: number;
  dropped: number;
  matches: number;
  partial: boolean;
}

export type TimelineSpan = [number, number, LaneState, string];

/** What a rank did: spans of (start, end, state, name), in seconds since the cell began. Elsewhere it was idle. */
export interface TimelineLane {
  label: string;
  rank: number;
  spans: TimelineSpan[];
}

/** The timeline of a cell. `open`: the cell still runs. `notes` are sentences for people. */
export interface TimelineReply {
  cell: number;
  seconds: number;
  open: boolean;
  lanes: TimelineLane[];
  notes: string[];
}

export type LineKind = "rank" | "notebook" | "straggler" | "diverging" | "invalid";

/** A rank with a line of its own, and the reason for people; "" if it is like the others. Rank -1: the notebook. */
export interface CurveLine {
  rank: number;
  kind: LineKind;
  text: string;
}

/**
 * The curve of a metric in a run, over `ranks` ranks; 0: of the notebook alone.
 *
 * `more` ranks that leave the others have no line.
 *
 * Two buffers: x (float64), then float32 of the shape [3 + lines, points]: mean, lowest, highest and the lines, NaN
 * where nothing is known. Diverging ranks and the notebook are not in the first three.
 */
export interface CurveEntry {
  metric: string;
  run: string;
  version: number;
  points: number;
  ranks: number;
  lines: CurveLine[];
  more: number;
}

/** The runs of a metric that its chart shows, the oldest first. */
export interface ChartEntry {
  metric: string;
  runs: string[];
}

export type MediumKind = "histogram" | "image";

/**
 * The last histogram or image of a rank under this name.
 *
 * An image has one buffer, a PNG. A histogram has two, as float64: the counts of its bins, and their edges.
 */
export interface MediumEntry {
  name: string;
  run: string;
  rank: number;
  kind: MediumKind;
  step: number;
  time: number;
}

/**
 * All metrics and names of media, the charts that were asked for, and what has changed; its buffers in this order.
 *
 * A reply has a limited size. Unless it `is_complete`, there is more: ask again. It took the kernel `seconds`.
 */
export interface CurvesReply {
  metrics: string[];
  media_names: string[];
  charts: ChartEntry[];
  curves: CurveEntry[];
  media: MediumEntry[];
  is_complete: boolean;
  seconds: number;
}

/** Done; the reply has no content. */
export interface EmptyReply {
}

export type Reply = SelectReply | ActReply | HistoryReply | LogsReply | TimelineReply | CurvesReply | EmptyReply;

/** The reply to each kind of request. */
export interface ReplyTypes {
  select: SelectReply;
  act: ActReply;
  history: HistoryReply;
  logs: LogsReply;
  timeline: TimelineReply;
  curves: CurvesReply;
}

/** The reply to the request with this id: these fields and those of a `Reply`, or an `error` if it is not `ok`. */
export interface ReplyMessage {
  kind: "reply";
  id: number | null;
  ok: boolean;
  error?: string;
}

/**
 * The state of the mesh as a picture for the notebook's file, by MIME type.
 *
 * It is sent after something has changed, a second or more after the last one.
 */
export interface PictureMessage {
  kind: "picture";
  data: Record<string, string>;
}
