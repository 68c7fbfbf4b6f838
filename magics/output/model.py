"""The model of one cell's output area: it takes the text and figures of ranks and returns what to publish.

Pure: no sockets, clocks or displays; the caller passes the time in. Not for the grouping of text (`grouping`), the
value of the cell (`results`) or its errors (`results.cell_error`).

A quick cell publishes plain streams when it ends. A longer one publishes one live area, updates it a few times a
second, and replaces it with a static bundle at its end. Memory and published size are bounded; a note announces each
cut.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshbook.magics.output.display_rows import DisplayRows
from meshbook.magics.output.gallery import WHERE_DISPLAYS_ARE, RankDisplay
from meshbook.magics.output.grouping import Block, GroupMode, OutputGroup, StreamName, group_blocks, split_lines
from meshbook.magics.output.publisher import Display, LiveDisplay, Publication, StreamText
from meshbook.magics.output.render import Ending, format_header, format_left, render_area, render_text
from meshbook.magics.output.text_buffer import TextBuffer
from meshbook.magics.output.truncation import cost_of, fit_details, fit_streams
from meshbook.runtime.formats import format_elapsed, format_label

STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Limits on how much of a cell's output is kept and shown; times in seconds, sizes in characters.

    `publication` limits the text of a cell. Plain text and HTML both contain that text, and the HTML adds up to
    `details`: a cell stays under 400 KB. `live` limits one update: 4 updates a second stay under 200 KB.
    """

    plain_time: float = 2.0  # a cell that ends sooner needs no live area
    update_interval: float = 0.25
    display_patience: float = 1.0  # how long a figure waits for the figures of the other ranks
    late_interval: float = 1.0
    capture: int = 128_000  # of one rank's stream, start and end together
    all_captures: int = 1_000_000  # of one stream of all ranks; with many ranks each rank keeps less
    least_capture: int = 2_000
    publication: int = 130_000
    details: int = 80_000
    live: int = 12_000
    live_lines: int = 200

    def capture_of(self, ranks: int) -> int:
        """Return how much of one rank's stream to keep in a cell with this many ranks."""
        return max(self.least_capture, min(self.capture, self.all_captures // max(ranks, 1)))

    def live_lines_of(self, ranks: int) -> int:
        """Return how many of its last lines a rank shows while it runs."""
        return max(1, min(12, self.live_lines // max(ranks, 1)))


class CellOutput:
    """The output of one cell while it runs and at its end. Not thread-safe: it has one owner.

    `shown` are the ranks whose output is published, all if None. `quiet` publishes nothing. The spools hold the output
    that is not published. `mesh` is the prefix of rank labels if there are several meshes.
    """

    def __init__(
        self,
        ranks: Sequence[int],
        *,
        started: float,
        shown: frozenset[int] | None = None,
        quiet: bool = False,
        group: GroupMode = "auto",
        mesh: str = "",
        limits: OutputLimits = OutputLimits(),
    ) -> None:
        self._ranks = tuple(ranks)
        self.started = self._started = started
        self._shown = frozenset() if quiet else shown
        self._quiet = quiet
        self._mode = group
        self._mesh = mesh
        self._limits = limits
        self._running = set(ranks)
        self._endings: dict[int, Ending] = {}
        self._slowest: int | None = None
        self._displays = DisplayRows(limits.display_patience, limits.update_interval)
        self._cleared: set[int] = set()  # ranks whose next output replaces all earlier output
        self.final: list[Publication] = []  # the whole output, after `close`
        self._part = 0
        self._parts: list[Publication] = []  # the publications of the parts that have ended
        self._is_open = False  # whether the live area exists
        self._is_closed = False
        self._is_paused = False  # a prompt is shown
        self._is_left = False
        self._part_started = started  # after a prompt, output starts anew, as in a separate cell
        self._aside_room = limits.publication
        self._ended: float | None = None
        self._waiting: frozenset[int] = frozenset()
        self._waits_for = ""
        self._remark = ""
        self._published = -math.inf
        self._late_room = limits.publication
        self._forget_texts()

    def add(self, rank: int, stream: StreamName, text: str, live: str | None = None) -> None:
        """Add text of a rank; also after `close`, for threads that still print.

        `live` are the rows after the text that may still change. They replace the rank's previous rows; None keeps
        those.
        """
        if not self._is_shown(rank):
            self._unseen.add(rank)
            return
        if rank in self._cleared:
            self.clear(rank)
        # Text published late or beside a prompt cannot be replaced, so rows wait there until they are final.
        is_whole = self._is_closed or self._is_paused
        self._texts[stream].add(rank, text, None if is_whole else live)
        self._is_changed = True

    def display(
        self,
        rank: int,
        bundle: Mapping[str, Any],
        metadata: Mapping[str, Any],
        display_id: str = "",
        *,
        update: bool = False,
    ) -> None:
        """Add a rich output of a rank. With an id, a later one can replace it; `update` replaces those with its id."""
        if not self._is_shown(rank):
            self._unseen.add(rank)
            return
        if rank in self._cleared and not update:
            self.clear(rank)
        display = RankDisplay(rank, bundle, metadata, display_id, mesh=self._mesh)
        (self._displays.update if update else self._displays.add)(display)
        self._is_changed = True

    def clear(self, rank: int, *, wait: bool = False) -> None:
        """Remove what a rank has shown in this cell; with `wait`, only when it shows the next output."""
        if wait:
            self._cleared.add(rank)
            return
        self._cleared.discard(rank)
        for text in self._texts.values():
            text.clear(rank)
        self._displays.clear(rank)
        self._is_changed = True

    def finish(self, rank: int, ending: Ending = "done") -> None:
        """Record how a rank ended, or that it was `skipped` and never begins. Idempotent."""
        self._running.discard(rank)
        self._endings[rank] = ending
        self._is_changed = True

    def leave(self) -> None:
        """Record that the ranks continue without this notebook, so that their endings stay unknown here."""
        self._is_left = self._is_changed = True

    def remark(self, text: str) -> None:
        """Show this text below the header while the cell runs; it replaces the previous remark. Empty: no remark."""
        if text != self._remark and not self._is_closed:
            self._remark, self._is_changed = text, True

    def wait(self, ranks: frozenset[int], what_for: str) -> None:
        """Record the ranks that have not begun the cell, and the reason in words or an empty string."""
        if (ranks, what_for) != (self._waiting, self._waits_for):
            self._waiting, self._waits_for, self._is_changed = ranks, what_for, True

    def due(self, now: float) -> list[Publication]:
        """Return what to publish now. Call it 4 to 10 times a second, and for a while after `close`."""
        if self._quiet:
            return []
        if self._is_closed:
            return self._publish_late(now)
        if self._is_paused:
            return self._publish_aside(now)
        if now - self._part_started < self._limits.plain_time:
            return []
        running = {rank for rank in self._running if self._is_shown(rank)}
        return [*self._update_live(now), *self._displays.take_ready(now, running)]

    def close(self, now: float, footer: Callable[[], str] = str) -> list[Publication]:
        """End the cell: return its final output for the notebook; a longer cell gets a footer."""
        if self._ended is None:
            self._ended = now
        if self._is_closed or self._quiet:
            return []
        self._is_closed = True
        return self._end_part(now, footer)

    def pause(self, now: float) -> list[Publication]:
        """Return all output so far in its final form, before a prompt is shown below it."""
        if self._is_closed or self._quiet:
            return []
        self._is_paused = True
        return self._end_part(now)

    def resume(self, now: float) -> None:
        """Continue after a prompt."""
        self._is_paused = False
        self._part_started = now

    def _end_part(self, now: float, footer: Callable[[], str] = str) -> list[Publication]:
        """Return what is shown in its final form, and forget it."""
        self._published = now
        if self._is_open:
            # Before a prompt the header must not claim permanently that ranks run.
            so_far = f"up to the prompt · {format_elapsed(now - self._started)}"
            area = render_area(self._whole_text(), self.headline(now) if self._is_closed else so_far, footer())
            text: list[Publication] = [LiveDisplay(area, update=True, is_final=True, name=self._area)]
        else:  # plain streams, except for ranges: a range opens to show each rank's text, which a stream cannot
            text = [_as_publication(name, groups) for name, groups in self._whole_text().items() if groups]
        self._is_open = False
        self._part += 1
        self._forget_texts()
        displays, note = self._displays.take_all(), self._announce_hidden()
        self._parts += [*text, *note]
        self.final = [*self._parts, *self._displays.shown()]
        return [*text, *displays, *note]

    @property
    def has_late_text(self) -> bool:
        """Whether text came after `close` that `due` has not returned yet."""
        return self._is_closed and self._is_changed and not self._quiet

    def _is_shown(self, rank: int) -> bool:
        return self._shown is None or rank in self._shown

    def _update_live(self, now: float) -> list[Publication]:
        if now - self._published < self._limits.update_interval:
            return []
        is_current = self._is_open and not self._is_changed
        if is_current and int(now - self._started) == int(self._published - self._started):  # the header has seconds
            return []
        publication = LiveDisplay(self._live_bundle(now), update=self._is_open, name=self._area)
        self._is_open, self._is_changed, self._published = True, False, now
        return [publication]

    def _live_bundle(self, now: float) -> dict[str, str]:
        count = self._limits.live_lines_of(len(self._ranks))
        groups = {name: self._of_mesh(self._texts[name].last_groups(count)) for name in STREAMS}
        header = "\n".join(filter(None, (self.headline(now), self._waits_for, self._remark)))
        return render_area(fit_streams(groups, self._limits.live), header)

    @property
    def _area(self) -> str:
        """The name of the live area; after a prompt there is a new area."""
        return f"part {self._part}" if self._part else ""

    def _whole_text(self) -> dict[StreamName, list[OutputGroup]]:
        groups = self._groups()
        if not any(groups.values()):  # true in most cells: nothing to fit
            return groups
        return fit_details(fit_streams(groups, self._limits.publication), self._limits.details)

    def _late_text(self, budget: int) -> list[StreamText]:
        fitted = fit_streams(self._groups(), budget)
        texts = {name: render_text(groups, name) for name, groups in fitted.items()}
        return [StreamText(name, text) for name, text in texts.items() if text]

    def _groups(self) -> dict[StreamName, list[OutputGroup]]:
        groups = {name: self._of_mesh(self._texts[name].groups()) for name in STREAMS}
        if self._unseen:
            note = f"… output of {self._mesh}{format_label(self._unseen)} not shown (%mesh log RANK)"
            groups["stdout"].append(OutputGroup((), Block((note,))))
        return groups

    def _of_mesh(self, groups: Sequence[OutputGroup]) -> list[OutputGroup]:
        return [group.of_mesh(self._mesh) for group in groups]

    def headline(self, now: float) -> str:
        """Return the cell's state as one line: `8 ranks · 6 running · 2 done · 00:12 · r3 slowest`."""
        if self._is_left:
            return format_left(len(self._ranks), self._elapsed(now), self._mesh)
        if len(self._running) == 1 < len(self._ranks):
            (self._slowest,) = self._running
        return format_header(
            mesh=self._mesh,
            total=len(self._ranks),
            running=len(self._running - self._waiting),
            waiting=len(self._running & self._waiting),
            endings=Counter(self._endings.values()),
            elapsed=self._elapsed(now),
            slowest=self._slowest,
        )

    def _elapsed(self, now: float) -> float:
        return (now if self._ended is None else self._ended) - self._started

    def _publish_aside(self, now: float) -> list[Publication]:
        """Publish output during a prompt as plain text above it; output over the budget waits until the prompt ends."""
        if not self._is_changed or self._aside_room <= 0 or now - self._published < self._limits.update_interval:
            return []
        streams = self._late_text(self._aside_room)
        self._aside_room -= sum(cost_of(stream.text) for stream in streams)
        self._forget_texts()
        self._published = now
        return [*streams]

    def _publish_late(self, now: float) -> list[Publication]:
        """Publish text of threads that outlive the cell below that cell, until its budget is used up."""
        if not self._is_changed or now - self._published < self._limits.late_interval:
            return []
        streams = self._late_text(self._late_room) if self._late_room > 0 else []
        self._forget_texts()
        self._published = now
        if streams:
            self._late_room -= sum(cost_of(stream.text) for stream in streams)
            if self._late_room <= 0:
                streams.append(StreamText("stdout", "… later output of this cell is not shown (%mesh log RANK)\n"))
        return [*streams, *self._displays.take_all()]

    def _announce_hidden(self) -> list[StreamText]:
        hidden, self._displays.hidden = self._displays.hidden, {}
        if not hidden:
            return []
        count, first = max(hidden.values()), min(hidden)
        whose, where = f"{self._mesh}{format_label(hidden)}", WHERE_DISPLAYS_ARE.format(first)
        return [StreamText("stdout", f"… {count:,} more displays of {whose} are not shown ({where})\n")]

    def _forget_texts(self) -> None:
        limit = self._limits.capture_of(len(self._ranks))
        self._texts: dict[StreamName, _ArrivedText | _RankedText] = {
            name: _ArrivedText(limit, self._mode, self._mesh)
            if self._mode in ("order", "none")
            else _RankedText(limit, self._mode)
            for name in STREAMS
        }
        self._unseen: set[int] = set()
        self._is_changed = False


class _RankedText:
    """One stream, with a separate buffer for each rank."""

    def __init__(self, limit: int, mode: GroupMode) -> None:
        self._limit = limit
        self._mode = mode
        self._captures: dict[int, TextBuffer] = {}

    def add(self, rank: int, text: str, live: str | None) -> None:
        if rank not in self._captures:
            if not (text.strip("\r") or live):
                return
            self._captures[rank] = TextBuffer(self._limit)
        self._captures[rank].add(text)
        if live is not None:
            self._captures[rank].live = live

    def clear(self, rank: int) -> None:
        self._captures.pop(rank, None)

    def groups(self) -> list[OutputGroup]:
        return group_blocks({rank: each.block() for rank, each in self._captures.items()}, self._mode)

    def last_groups(self, count: int) -> list[OutputGroup]:
        last = {rank: Block(each.last_lines(count)) for rank, each in self._captures.items()}
        # The members behind a range would double the size of each live update. The static area contains them.
        return [replace(group, members=()) for group in group_blocks(last, self._mode)]


class _ArrivedText:
    """One stream with the chunks of all ranks in order of arrival: unlabelled (`none`) or labelled (`order`)."""

    def __init__(self, limit: int, mode: GroupMode, mesh: str) -> None:
        self._mesh = mesh
        self._capture = TextBuffer(limit)
        self._is_labelled = mode == "order"
        self._writer: int | None = None  # the rank whose line is still open
        self._live: dict[int, str] = {}

    def add(self, rank: int, text: str, live: str | None) -> None:
        if text:
            self._capture.add(self._label(rank, text) if self._is_labelled else text)
        if live is not None:
            self._live[rank] = live

    def clear(self, rank: int) -> None:
        """Remove only the rows that may still change: lines of several ranks are interleaved in the rest."""
        self._live.pop(rank, None)

    def groups(self) -> list[OutputGroup]:
        block = self._capture.block()
        return [*([OutputGroup((), block)] if block.lines else []), *self._live_groups()]

    def last_groups(self, count: int) -> list[OutputGroup]:
        lines = self._capture.last_lines(count)
        return [*([OutputGroup((), Block(lines))] if lines else []), *self._live_groups()]

    def _live_groups(self) -> list[OutputGroup]:
        """Return the rows that may still change, rank by rank; they are shown below the other text."""
        rows = [(rank, split_lines(live)) for rank, live in sorted(self._live.items()) if live]
        return [OutputGroup((rank,) if self._is_labelled else (), Block(lines)) for rank, lines in rows]

    def _label(self, rank: int, text: str) -> str:
        label = f"{self._mesh}{format_label([rank])} "
        ends_line = text.endswith("\n")
        body = text.removesuffix("\n").replace("\n", f"\n{label}")
        start = label if self._writer is None else "" if self._writer == rank else f"\n{label}"
        self._writer = None if ends_line else rank
        return f"{start}{body}\n" if ends_line else f"{start}{body}"


def _as_publication(name: StreamName, groups: list[OutputGroup]) -> Publication:
    if not any(group.members for group in groups):
        return StreamText(name, render_text(groups, name))
    empty: dict[StreamName, list[OutputGroup]] = {"stdout": [], "stderr": []}
    return Display(render_area(empty | {name: groups}), {})
