"""The output area of one cell, as a model: text and figures of its ranks come in, what to publish comes out.

Pure: it knows no socket, clock or display; the time is passed in. Not for how text is grouped
(`grouping`), nor for the value of the cell (`results`) or its errors (`tracebacks`).

A quick cell publishes plain streams when it ends. A longer one gets one live area, updated a few times a
second and replaced by a static bundle at its end. Memory and publication are bounded; cuts are announced.
"""

from __future__ import annotations

import hashlib
import html
import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import accumulate, chain, takewhile
from typing import Any, TypeAlias

from meshbook.magics.grouping import (
    Block,
    Group,
    GroupMode,
    StreamName,
    escape_html,
    group_blocks,
    render_html,
    render_text,
    split_lines,
)
from meshbook.magics.ranges import format_label

STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")

_LEAST_SHARE = 512  # of a publication, for one group: below that little of it could be read
_LEAST_LINE = 80
_LIVE_LINE = 400  # characters of a line that the live area can show: aligning endless lines would take it seconds
_ANNOUNCEMENT_SIZE = 120  # about what the line takes that tells of a cut
_PIECE = 4096  # characters; smaller chunks are joined up to this size
_STDERR_STYLE = "background:var(--jp-rendermime-error-background,rgba(255,0,0,.1))"
_HEADER_STYLE = (
    "font-family:var(--jp-ui-font-family,sans-serif);font-size:var(--jp-ui-font-size1,13px);"
    "color:var(--jp-ui-font-color2,#808080)"
)


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """How much of a cell's output is kept and shown; times in seconds, sizes in characters.

    `publication` holds for the text of a cell. Text and HTML both contain it, and the HTML has up to
    `details` on top: a cell stays under 400 KB. `live` is for one update: 4 a second stay under 200 KB.
    """

    plain_time: float = 2.0  # a cell that ends sooner needs no live area
    update_interval: float = 0.25
    display_patience: float = 1.0  # how long a figure waits for its like from the other ranks
    late_interval: float = 1.0
    capture: int = 128_000  # of one rank's stream, its start and end together
    all_captures: int = 1_000_000  # of one stream of all ranks; with many ranks each keeps less
    least_capture: int = 2_000
    publication: int = 130_000
    details: int = 80_000
    live: int = 12_000
    live_lines: int = 200

    def capture_of(self, ranks: int) -> int:
        """What is kept of one stream of one rank, in a cell of so many ranks."""
        return max(self.least_capture, min(self.capture, self.all_captures // max(ranks, 1)))

    def live_lines_of(self, ranks: int) -> int:
        """How many of its last lines a rank shows while it runs."""
        return max(1, min(12, self.live_lines // max(ranks, 1)))


@dataclass(frozen=True, slots=True)
class Stream:
    """Plain text, as a `stream` message."""

    name: StreamName
    text: str


@dataclass(frozen=True, slots=True)
class Display:
    """A rich output of its own, as a `display_data` message."""

    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LiveDisplay:
    """The one live area of the cell: `display_data` with its display_id, or `update_display_data`."""

    data: Mapping[str, Any]
    update: bool


Publication: TypeAlias = Stream | Display | LiveDisplay


@dataclass(frozen=True, slots=True)
class Picture:
    """A rich output as its rank sent it."""

    rank: int
    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


class Capture:
    """The start and end of a text that comes in chunks, in bounded memory; the rest is counted and hashed."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head: deque[str] = deque()
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._length = 0
        self._newlines = 0
        self._ends_open = False
        self._digest = hashlib.blake2b(digest_size=16)

    @property
    def line_count(self) -> int:
        """How many lines came in; a last one without a newline counts."""
        return self._newlines + self._ends_open

    def add(self, text: str) -> None:
        """Take the next chunk; the cost is about that of hashing it, whatever came before."""
        if not text:
            return
        self._newlines += text.count("\n")
        self._ends_open = not text.endswith("\n")
        self._digest.update(text.encode("utf-8", "surrogatepass"))
        room = max(self._half - self._length, 0)
        self._length += len(text)
        _append(self._head, text[:room])
        self._add_to_tail(text[room:][-self._half :])

    def block(self) -> Block:
        """What is kept, as whole lines with a cut between them if some are missing.

        It depends on the text alone, not on its chunks: the same flood from two ranks makes equal blocks.
        """
        head, tail = "".join(self._head), "".join(self._tail)
        if self._length <= 2 * self._half:
            return Block(split_lines(head + tail))
        first = split_lines(head if head.endswith("\n") else _without_last_line(head))
        last = split_lines(_without_first_line(tail[-self._half :]))
        hidden = max(self.line_count - len(first) - len(last), 1)
        return Block(first + last, hidden, len(first), self._digest.digest())

    def last_lines(self, count: int) -> tuple[str, ...]:
        """The last lines, read from the last pieces only, because this is asked several times a second."""
        pieces: list[str] = []
        newlines = 0
        for piece in chain(reversed(self._tail), reversed(self._head)):
            pieces.append(piece)
            newlines += piece.count("\n")
            if newlines > count:
                break
        return split_lines("".join(reversed(pieces))[-count * _LIVE_LINE :])[-count:]

    def _add_to_tail(self, text: str) -> None:
        _append(self._tail, text)
        self._tail_size += len(text)
        while self._tail and self._tail_size - len(self._tail[0]) >= self._half:
            self._tail_size -= len(self._tail.popleft())


class CellOutput:
    """What one cell shows while it runs and at its end. Not thread-safe: one owner feeds and asks it.

    `shown` are the ranks whose output is published, all if None; `quiet` publishes nothing. Text that they
    hold back is in the spool, figures are in `withheld`.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        *,
        started: float,
        shown: frozenset[int] | None = None,
        quiet: bool = False,
        group: GroupMode = "auto",
        limits: OutputLimits = OutputLimits(),
    ) -> None:
        self._ranks = tuple(ranks)
        self._started = started
        self._shown = frozenset() if quiet else shown
        self._quiet = quiet
        self._mode = group
        self._limits = limits
        self._running = set(ranks)
        self._failed: set[int] = set()
        self._slowest: int | None = None
        self._pictures = _Pictures(limits.display_patience)
        self.withheld: list[Picture] = []
        self._is_open = False  # whether the live area exists
        self._is_closed = False
        self._published = -math.inf
        self._late_room = limits.publication
        self._forget_texts()

    def add(self, rank: int, stream: StreamName, text: str) -> None:
        """A rank wrote text; also after `close`, for what its threads still print."""
        if not self._is_shown(rank):
            self._unseen.add(rank)
            return
        self._texts[stream].add(rank, text)
        self._is_changed = True

    def display(self, rank: int, bundle: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """A rank displayed something rich."""
        picture = Picture(rank, bundle, metadata)
        if self._is_shown(rank):
            self._pictures.add(picture)
            self._is_changed = True
        else:
            self.withheld.append(picture)

    def finish(self, rank: int, *, failed: bool) -> None:
        """A rank has come to its end; asking twice is harmless."""
        self._running.discard(rank)
        if failed:
            self._failed.add(rank)
        self._is_changed = True

    def due(self, now: float) -> list[Publication]:
        """What to publish now; to be asked some 4 to 10 times a second, also for a while after `close`."""
        if self._quiet:
            return []
        if self._is_closed:
            return self._publish_late(now)
        if now - self._started < self._limits.plain_time:
            return []
        running = {rank for rank in self._running if self._is_shown(rank)}
        return [*self._update_live(now), *self._pictures.take_ready(now, running)]

    def close(self, now: float) -> list[Publication]:
        """The cell ended: its output as it stays in the notebook."""
        if self._is_closed or self._quiet:
            return []
        self._is_closed = True
        self._published = now
        text = [self._static_area(now)] if self._is_open else self._streams(self._limits.publication)
        self._forget_texts()
        return [*text, *self._pictures.take_all()]

    @property
    def has_late_text(self) -> bool:
        """Whether text came after `close` that `due` has not given out yet."""
        return self._is_closed and self._is_changed and not self._quiet

    def _is_shown(self, rank: int) -> bool:
        return self._shown is None or rank in self._shown

    def _update_live(self, now: float) -> list[Publication]:
        if now - self._published < self._limits.update_interval:
            return []
        if self._is_open and not self._is_changed and not self._is_new_second(now):
            return []
        publication = LiveDisplay(self._live_bundle(now), update=self._is_open)
        self._is_open, self._is_changed, self._published = True, False, now
        return [publication]

    def _is_new_second(self, now: float) -> bool:
        return int(now - self._started) != int(self._published - self._started)

    def _live_bundle(self, now: float) -> dict[str, str]:
        count = self._limits.live_lines_of(len(self._ranks))
        groups = {name: self._texts[name].last_groups(count) for name in STREAMS}
        return _render_area(self._header(now), _fit_streams(groups, self._limits.live))

    def _static_area(self, now: float) -> LiveDisplay:
        groups = _fit_streams(self._groups(), self._limits.publication)
        groups = _fit_details(groups, self._limits.details)
        return LiveDisplay(_render_area(self._header(now), groups), update=True)

    def _streams(self, budget: int) -> list[Stream]:
        fitted = _fit_streams(self._groups(), budget)
        texts = {name: render_text(groups, name) for name, groups in fitted.items()}
        return [Stream(name, text) for name, text in texts.items() if text]

    def _groups(self) -> dict[StreamName, list[Group]]:
        groups = {name: self._texts[name].groups() for name in STREAMS}
        if self._unseen:
            note = f"… output of {format_label(self._unseen)} not shown (%mesh log RANK)"
            groups["stdout"].append(Group((), Block((note,))))
        return groups

    def _header(self, now: float) -> str:
        if len(self._running) == 1 < len(self._ranks):
            (self._slowest,) = self._running
        return format_header(
            total=len(self._ranks),
            running=len(self._running),
            failed=len(self._failed),
            elapsed=now - self._started,
            slowest=self._slowest,
        )

    def _publish_late(self, now: float) -> list[Publication]:
        """Text of a thread that outlives its cell: appended to that cell, until its share is used up."""
        if not self._is_changed or now - self._published < self._limits.late_interval:
            return []
        streams = self._streams(self._late_room) if self._late_room > 0 else []
        self._forget_texts()
        self._published = now
        if streams:
            self._late_room -= sum(len(stream.text) for stream in streams)
            if self._late_room <= 0:
                streams.append(Stream("stdout", "… later output of this cell is not shown (%mesh log RANK)\n"))
        return [*streams, *self._pictures.take_all()]

    def _forget_texts(self) -> None:
        make = _ArrivedText if self._mode in ("order", "none") else _RankedText
        limit = self._limits.capture_of(len(self._ranks))
        self._texts: dict[StreamName, _ArrivedText | _RankedText] = {name: make(limit, self._mode) for name in STREAMS}
        self._unseen: set[int] = set()
        self._is_changed = False


class _RankedText:
    """One stream, each rank's text for itself."""

    def __init__(self, limit: int, mode: GroupMode) -> None:
        self._limit = limit
        self._mode = mode
        self._captures: dict[int, Capture] = {}

    def add(self, rank: int, text: str) -> None:
        if rank not in self._captures:
            self._captures[rank] = Capture(self._limit)
        self._captures[rank].add(text)

    def groups(self) -> list[Group]:
        return group_blocks({rank: each.block() for rank, each in self._captures.items()}, self._mode)

    def last_groups(self, count: int) -> list[Group]:
        last = {rank: Block(each.last_lines(count)) for rank, each in self._captures.items()}
        # The members behind a range would double each update of the live area; the static one has them.
        return [replace(group, members=()) for group in group_blocks(last, self._mode)]


class _ArrivedText:
    """One stream, the chunks of all ranks in order of arrival: bare (`none`), or labelled (`order`)."""

    def __init__(self, limit: int, mode: GroupMode) -> None:
        self._capture = Capture(limit)
        self._is_labelled = mode == "order"
        self._writer: int | None = None  # the rank whose line is still open

    def add(self, rank: int, text: str) -> None:
        if text:
            self._capture.add(self._label(rank, text) if self._is_labelled else text)

    def groups(self) -> list[Group]:
        block = self._capture.block()
        return [Group((), block)] if block.lines else []

    def last_groups(self, count: int) -> list[Group]:
        lines = self._capture.last_lines(count)
        return [Group((), Block(lines))] if lines else []

    def _label(self, rank: int, text: str) -> str:
        label = f"{format_label([rank])} "
        ends_line = text.endswith("\n")
        body = text.removesuffix("\n").replace("\n", f"\n{label}")
        start = label if self._writer is None else "" if self._writer == rank else f"\n{label}"
        self._writer = None if ends_line else rank
        return f"{start}{body}\n" if ends_line else f"{start}{body}"


class _Pictures:
    """Rich output that waits for its like from the other ranks, so that the same figure appears once."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._waiting: list[Picture] = []
        self._since: float | None = None

    def add(self, picture: Picture) -> None:
        self._waiting.append(picture)

    def take_ready(self, now: float, running: Set[int]) -> list[Display]:
        """All that wait, once every running rank is among them or the first has waited long enough."""
        if not self._waiting:
            return []
        self._since = now if self._since is None else self._since
        is_complete = running <= {picture.rank for picture in self._waiting}
        return self.take_all() if is_complete or now - self._since >= self._patience else []

    def take_all(self) -> list[Display]:
        waiting, self._waiting, self._since = self._waiting, [], None
        return group_pictures(waiting)


def group_pictures(pictures: Iterable[Picture]) -> list[Display]:
    """The first picture of each rank, then the second of each and so on; equal ones once, with ranks."""
    counts: Counter[int] = Counter()
    alike: dict[tuple[int, str], list[Picture]] = {}
    for picture in pictures:
        alike.setdefault((counts[picture.rank], _content_of(picture.data)), []).append(picture)
        counts[picture.rank] += 1
    ordered = sorted(alike.items(), key=lambda item: (item[0][0], min(picture.rank for picture in item[1])))
    return [display for _, same in ordered for display in _label_picture(same)]


def format_header(*, total: int, running: int, failed: int, elapsed: float, slowest: int | None = None) -> str:
    """The line above a longer cell's output: `8 ranks · 6 running · 2 done · 00:12 · r3 slowest`."""
    done = total - running - failed
    counts = [(running, "running"), (done, "done"), (failed, "failed")]
    parts = [
        f"{total} {'rank' if total == 1 else 'ranks'}",
        *(f"{count} {word}" for count, word in counts if count),
    ]
    parts.append(format_elapsed(elapsed))
    return " · ".join(parts if slowest is None else [*parts, f"r{slowest} slowest"])


def format_elapsed(seconds: float) -> str:
    """Minutes and seconds, `00:12`, with hours where there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def fit(groups: Sequence[Group], budget: int) -> list[Group]:
    """The groups in about `budget` bytes: small ones whole, of large ones the start and the end.

    Sizes are those in HTML, where escapes make text longest, so that the plain text fits as well.
    """
    sizes = [_size_of(group.lines, group.prefix) for group in groups]
    count = _count_fitting([min(size, _LEAST_SHARE) for size in sizes], budget)
    share = _share_out(sizes[:count], budget)
    fitted = [
        group if size <= share else _shorten(group, int(share))
        for group, size in zip(groups[:count], sizes[:count], strict=True)
    ]
    return [*fitted, _announce_rest(groups[count:])] if count < len(groups) else fitted


def _fit_streams(groups: Mapping[StreamName, list[Group]], budget: int) -> dict[StreamName, list[Group]]:
    # Errors must not be crowded out by a flood on stdout, nor take more than they need.
    stderr = fit(groups["stderr"], budget // 3)
    used = sum(_size_of(group.lines, group.prefix) for group in stderr)
    return {"stdout": fit(groups["stdout"], budget - used), "stderr": stderr}


def _fit_details(groups: Mapping[StreamName, list[Group]], budget: int) -> dict[StreamName, list[Group]]:
    ranges = sum(bool(group.members) for each in groups.values() for group in each)
    share = budget // max(ranges, 1)
    return {
        name: [replace(group, members=tuple(fit(group.members, share))) for group in each]
        for name, each in groups.items()
    }


def _share_out(sizes: Sequence[int], budget: int) -> float:
    """The largest size that each may have; what the small ones leave goes to the large ones."""
    rest = budget
    for index, size in enumerate(sorted(sizes)):
        share = rest / (len(sizes) - index)
        if size > share:
            return share
        rest -= size
    return math.inf


def _shorten(group: Group, size: int) -> Group:
    block = group.block
    room = max(size - _ANNOUNCEMENT_SIZE, 0) // 2
    # A character may take 6 bytes once it is escaped and encoded: a shortened line has to fit into the room.
    lines = [_shorten_line(line, room // 8) for line in block.lines]
    prefix = group.prefix
    sizes = [_size_of([line], prefix) for line in lines]
    # Where lines are missing already, the two parts must not grow across that gap.
    first = _count_fitting(sizes[: block.cut] if block.hidden else sizes, room)
    back = sizes[block.cut :] if block.hidden else sizes[first:]
    last = len(lines) - _count_fitting(back[::-1], room)
    hidden = block.hidden + last - first
    return replace(group, block=Block((*lines[:first], *lines[last:]), hidden, first, block.identity))


def _shorten_line(line: str, length: int) -> str:
    if len(line) <= max(length, _LEAST_LINE):
        return line
    kept = max(length, _LEAST_LINE) - 24
    return f"{line[:kept]} … (+{len(line) - kept:,} characters)"


def _announce_rest(groups: Sequence[Group]) -> Group:
    ranks = {rank for group in groups for rank in group.ranks}
    return Group((), Block((f"… {len(groups):,} more groups not shown: {format_label(ranks)} (%mesh log RANK)",)))


def _size_of(lines: Iterable[str], prefix: str) -> int:
    return sum(len(escape_html(line).encode("utf-8", "replace")) + len(prefix) + 1 for line in lines)


def _count_fitting(sizes: Iterable[int], room: int) -> int:
    """How many from the start fit."""
    return sum(1 for _ in takewhile(lambda total: total <= room, accumulate(sizes)))


def _render_area(header: str, groups: Mapping[StreamName, Sequence[Group]]) -> dict[str, str]:
    stdout, stderr = (render_text(groups[name], name) for name in STREAMS)
    plain = f"{header}\n{stdout}" + (f"stderr:\n{stderr}" if stderr else "")
    blocks = [
        f'<div style="{_HEADER_STYLE}">{html.escape(header)}</div>',
        render_html(groups["stdout"], "stdout"),
    ]
    if stderr:
        blocks.append(f'<div style="{_STDERR_STYLE}">{render_html(groups["stderr"], "stderr")}</div>')
    return {"text/plain": plain, "text/html": f"<div>{''.join(blocks)}</div>"}


def _content_of(data: Mapping[str, Any]) -> str:
    # The text of a figure may hold an address; where there is anything richer, that decides what is the same.
    rich = {mime: content for mime, content in data.items() if mime != "text/plain"}
    return repr(sorted((rich or data).items()))


def _label_picture(same: Sequence[Picture]) -> list[Display]:
    label = format_label(picture.rank for picture in same)
    heading = {"text/plain": label, "text/html": f'<div style="{_HEADER_STYLE}">{label}</div>'}
    data, metadata = same[0].data, same[0].metadata
    if not data.keys() <= heading.keys():
        return [Display(heading, {}), Display(data, metadata)]
    # Text and HTML have room for their label, which spares an output: JupyterLab shows 50 a cell.
    parts = {"text/plain": f"{label} {data.get('text/plain', '')}"}
    if "text/html" in data:
        parts["text/html"] = heading["text/html"] + data["text/html"]
    return [Display(parts, metadata)]


def _without_last_line(text: str) -> str:
    return text[: text.rfind("\n") + 1] or text


def _without_first_line(text: str) -> str:
    return text[text.find("\n") + 1 :] or text


def _append(pieces: deque[str], text: str) -> None:
    # A rank that prints by the character would otherwise leave a piece, with its overhead, for each.
    if pieces and len(pieces[-1]) + len(text) <= _PIECE:
        pieces[-1] += text
    elif text:
        pieces.append(text)
