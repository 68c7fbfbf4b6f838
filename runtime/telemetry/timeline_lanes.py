"""The state of each process over time, from its spans: running, in a collective, waiting, transferring, idle. Pure.

For `%mesh trace` and other views of the same data. Times are nanoseconds of one clock.

In a collective a rank first waits for ranks that have not arrived, and then takes part in it with all. The calls of
ranks are matched by the order in which each made them: the third all_reduce of one is the third of all others. A
backward pass that reduces gradients ends on all ranks at once. The rank with the shortest pass waited least, and each
other rank waited for the difference, at the end of its pass: all of them compute the same.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from meshbook.runtime.telemetry.spans import Span, SpanRecording

State = Literal["running", "collective", "transfer", "waiting", "idle"]
STATES: tuple[State, ...] = ("running", "collective", "transfer", "waiting", "idle")  # if threads differ, the first


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """An interval of time."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start

    def has(self, span: Span) -> bool:
        """Return whether some of the span is in it."""
        return span.start < self.end and span.end > self.start


class LaneSegment(NamedTuple):  # there are many, and these are made in half the time of a dataclass
    """A time in one state; `name`: the endpoint or collective, `awaited`: the ranks it waits for."""

    start: int
    end: int
    state: State
    name: str = ""
    awaited: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        return self.end - self.start


_What = tuple[State, str, tuple[int, ...]]
Lane = tuple[LaneSegment, ...]  # without gaps, from the start of the window to its end


@dataclass(frozen=True, slots=True)
class WaitBlame:
    """Waits of ranks for others in a collective: the longest sum, the number of calls, and the waiting ranks."""

    name: str
    awaited: tuple[int, ...]
    waited: int  # nanoseconds of the rank that waited longest
    times: int
    ranks: tuple[int, ...]


def lanes_of(recordings: Mapping[int, SpanRecording], window: TimeWindow) -> dict[int, Lane]:
    """Return the lanes of the ranks of one mesh."""
    spans = {rank: tuple(filter(window.has, each.spans)) for rank, each in recordings.items()}
    # If a recording is incomplete, its first spans are not the first; then match from the last ones.
    is_cut = any(each.since > window.start for each in recordings.values())
    waits = _waits_of(spans, is_cut=is_cut)
    return {rank: _lane_of(own, waits, rank, window) for rank, own in spans.items()}


def totals_of(lane: Lane) -> dict[State, int]:
    """Return how long a process was in each state, in nanoseconds."""
    total: Counter[State] = Counter()
    for segment in lane:
        total[segment.state] += segment.length
    return {state: total[state] for state in STATES}


def blames_of(lanes: Mapping[int, Lane]) -> list[WaitBlame]:
    """Return for which ranks others waited, by collective; the longest wait first."""
    found: dict[tuple[str, tuple[int, ...]], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, lane in lanes.items():
        for segment in lane:
            if segment.awaited:
                found[segment.name, segment.awaited][rank].append(segment.length)
    blames = [
        WaitBlame(name, awaited, max(map(sum, waits.values())), max(map(len, waits.values())), tuple(sorted(waits)))
        for (name, awaited), waits in found.items()
    ]
    return sorted(blames, key=lambda blame: -blame.waited)


def thin_out(lane: Lane, most: int) -> Lane:
    """Reduce the lane to at most so many segments: each column shows its longest state."""
    if len(lane) <= most:
        return lane
    start, end, width = lane[0].start, lane[-1].end, _width(lane, most)
    return _join(
        LaneSegment(start + at * width, min(end, start + (at + 1) * width), *what)
        for at, what in enumerate(_columns(lane, width))
    )


def states_of(lane: Lane, count: int) -> list[State]:
    """Return the state that lasted longest in each of at most so many columns."""
    return [state for state, _, _ in _columns(lane, _width(lane, count))]


def _width(lane: Lane, count: int) -> int:
    return max(1, -(-(lane[-1].end - lane[0].start) // count))


def _columns(lane: Lane, width: int) -> list[_What]:
    start = lane[0].start
    columns: dict[int, Counter[_What]] = defaultdict(Counter)
    for segment in lane:
        for at in range((segment.start - start) // width, -(-(segment.end - start) // width)):
            left, right = start + at * width, start + (at + 1) * width
            columns[at][segment[2:]] += min(segment.end, right) - max(segment.start, left)
    return [_longest(columns[at]) for at in sorted(columns)]


def _longest(
    lengths: Mapping[_What, int],
) -> _What:
    """Return the longest entry of the state that lasted longest in total."""
    by_state: Counter[State] = Counter()
    for (state, _, _), length in lengths.items():
        by_state[state] += length
    ((longest, _),) = by_state.most_common(1)
    return max((what for what in lengths if what[0] == longest), key=lambda what: lengths[what])


def _join(segments: Iterable[LaneSegment]) -> Lane:
    """Merge adjacent segments of one kind."""
    joined: list[LaneSegment] = []
    for segment in segments:
        if joined and joined[-1][2:] == segment[2:]:
            joined[-1] = joined[-1]._replace(end=segment.end)
        else:
            joined.append(segment)
    return tuple(joined)


# -- waits for other ranks -----------------------------------------------------------------

_Wait = tuple[int, int, tuple[int, ...]]  # start, end, awaited ranks
_Waits = dict[tuple[int, int, int], _Wait]  # by (rank, thread, start) of the span


def _waits_of(spans: Mapping[int, Sequence[Span]], *, is_cut: bool) -> _Waits:
    """Return the wait of each collective of each rank: start, end, and the awaited ranks."""
    sequences: dict[tuple[str, str], dict[int, list[Span]]] = defaultdict(dict)
    for rank, own in spans.items():
        for span in sorted(own, key=lambda span: span.start, reverse=is_cut):
            if span.kind in ("collective", "backward") and span.link:
                sequences[span.name, span.link[0]].setdefault(rank, []).append(span)
    everyone = set(spans)
    waits: _Waits = {}
    for (name, group), by_rank in sequences.items():
        members = set(by_rank) if group else everyone
        for spans_at in itertools.zip_longest(*by_rank.values()):  # the first call of each rank, the second, ...
            met = {rank: span for rank, span in zip(by_rank, spans_at, strict=True) if span is not None}
            waits |= _waits_in_backward(met) if name == "backward" else _waits_in(met, members)
    return waits


def _waits_in(met: Mapping[int, Span], members: set[int]) -> _Waits:
    missing = tuple(sorted(members - met.keys()))
    if missing and all(span.is_open for span in met.values()):
        return {_key(rank, span): (span.start, span.end, missing) for rank, span in met.items()}
    last = max(met, key=lambda rank: met[rank].start)
    came = met[last].start
    return {
        _key(rank, span): (span.start, min(came, span.end), (last,)) for rank, span in met.items() if span.start < came
    }


def _waits_in_backward(met: Mapping[int, Span]) -> _Waits:
    shortest = min(met, key=lambda rank: _length(met[rank]))
    least = _length(met[shortest])
    return {
        _key(rank, span): (span.start + least, span.end, (shortest,))
        for rank, span in met.items()
        if _length(span) > least
    }


def _length(span: Span) -> int:
    return span.end - span.start


def _key(rank: int, span: Span) -> tuple[int, int, int]:
    return rank, span.thread, span.start


# -- one process -----------------------------------------------------------------------------


class _Piece(NamedTuple):
    """The part of a span that sets a thread's state; `weight`: the change in messages that run there or are awaited."""

    start: int
    end: int
    state: State
    name: str
    awaited: tuple[int, ...] = ()
    weight: int = 0


def _lane_of(spans: Sequence[Span], waits: _Waits, rank: int, window: TimeWindow) -> Lane:
    threads: dict[int, list[_Piece]] = defaultdict(list)
    for span in spans:
        threads[span.thread] += _pieces_of(span, waits.get(_key(rank, span)))
    lanes = [list(_sweep(pieces, _of_thread)) for pieces in threads.values() if pieces]
    if len(lanes) != 1:
        lanes = [list(_sweep([_Piece(*each) for lane in lanes for each in lane], _of_process))]
    return _join(_fill(lanes[0], window))


def _pieces_of(span: Span, wait: _Wait | None) -> Iterator[_Piece]:
    since, until, awaited = wait if wait is not None else (span.start, span.start, ())
    match span.kind:
        case "collective":
            yield _Piece(span.start, until, "waiting", span.name, awaited)
            yield _Piece(until, span.end, "collective", span.name)
        case "backward":
            yield _Piece(span.start, span.end, "running", span.name)
            yield _Piece(since, until, "waiting", span.name, awaited)
        case "transfer":
            yield _Piece(span.start, span.end, "transfer", span.name)
        case "wait":
            yield _Piece(span.start, span.end, "waiting", "an answer", (), -1)
        case "call":
            return  # the sending thread is running
        case "user":
            yield _Piece(span.start, span.end, "running", span.name)
        case _:
            yield _Piece(span.start, span.end, "running", span.name if span.kind != "cell" else "", (), 1)


def _sweep(pieces: Sequence[_Piece], decide: Callable[[Sequence[_Piece]], _Piece]) -> Iterator[LaneSegment]:
    """Yield the decided state from one change of the present pieces to the next; nothing while there are none."""
    changes = [(piece.start, 1, at) for at, piece in enumerate(pieces) if piece.end > piece.start]
    changes += [(pieces[at].end, 0, at) for _, _, at in changes]
    changes.sort()
    present: dict[int, _Piece] = {}  # in the order in which they began
    before = 0
    for time, begins, at in changes:
        if present and time > before:
            yield LaneSegment(before, time, *decide(tuple(present.values()))[2:5])
        before = time
        if begins:
            present[at] = pieces[at]
        else:
            del present[at]


def _of_thread(present: Sequence[_Piece]) -> _Piece:
    """Return a collective or a transfer, which excludes anything else; otherwise the innermost running piece."""
    innermost = present[-1]
    if len(present) == 1 or (innermost.state != "running" and not innermost.weight):
        return innermost
    runs = 0
    for piece in reversed(present):
        if not piece.weight and piece.state != "running":
            return piece
        runs += piece.weight
    state: State = "running" if runs > 0 or not any(piece.weight for piece in present) else "waiting"
    return next(piece for piece in reversed(present) if piece.state == state)


def _of_process(present: Sequence[_Piece]) -> _Piece:
    return present[0] if len(present) == 1 else min(present, key=lambda piece: STATES.index(piece.state))


def _fill(segments: Iterable[LaneSegment], window: TimeWindow) -> Iterator[LaneSegment]:
    """Cut the segments to the window, and fill gaps with idle."""
    at = window.start
    for segment in segments:
        start, end = max(segment.start, at), min(segment.end, window.end)
        if end <= start:
            continue
        if start > at:
            yield LaneSegment(at, start, "idle")
        yield segment._replace(start=start, end=end) if (start, end) != segment[:2] else segment
        at = end
    if at < window.end:
        yield LaneSegment(at, window.end, "idle")
