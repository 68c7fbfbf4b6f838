"""Profiles of several ranks merged: a summary of their differences, and one file with a lane for each rank. Pure."""

from __future__ import annotations

import gzip
import html
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from meshbook.runtime.cells.failures import is_user_code
from meshbook.runtime.cells.operator_profiles import OperatorProfile
from meshbook.runtime.formats import format_seconds, name_ranks
from meshbook.runtime.telemetry.samples import MAIN, CodeLine, RankSamples
from meshbook.runtime.traces import short_name

MOST_ROWS = 12
LEAST = 0.005  # of the time of some rank; shorter entries are omitted
DIFFERS = 0.2  # of the time of the longest rank: from this difference on, a function is reported
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_STYLE = (
    "font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px);"
    "color:var(--jp-content-font-color1,inherit);padding-left:var(--jp-code-padding,0)"
)


class Profile(Protocol):
    """The profile of some ranks."""

    @property
    def summary(self) -> ProfileSummary: ...
    @property
    def viewer(self) -> str:
        """The program that opens the file."""

    def content(self) -> dict[str, Any]:
        """Return the content of the file."""


@dataclass(frozen=True, slots=True)
class ProfileLine:
    """An entry of a profile: its seconds by rank, and (for a function) those with the functions it called."""

    name: str
    own: Mapping[int, float]
    total: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class ProfileSummary:
    """The times of each rank by entry. `ranks`: the profiled seconds of each."""

    title: str
    ranks: Mapping[int, float]
    lines: tuple[ProfileLine, ...]
    notes: tuple[str, ...] = ()

    def share(self, seconds: Mapping[int, float], rank: int) -> float:
        """Return the share of all time profiled on this rank."""
        return seconds.get(rank, 0.0) / self.ranks[rank] if self.ranks[rank] else 0.0

    def mean(self, seconds: Mapping[int, float]) -> float:
        """Return the mean share over the ranks."""
        return sum(self.share(seconds, rank) for rank in self.ranks) / max(1, len(self.ranks))

    def rows(self) -> list[tuple[str, ...]]:
        """Return the entries with the largest times of any rank as a table, in the order of their shares."""
        seen = [line for line in self.lines if any(self.share(line.own, rank) >= LEAST for rank in self.ranks)]
        largest = sorted(seen, key=lambda line: -max(line.own.values(), default=0.0))[:MOST_ROWS]
        largest.sort(key=lambda line: (-self.mean(line.own), line.name))
        has_totals = any(line.total for line in largest)
        ends = ("lowest", "highest") if len(self.ranks) > 1 else ()
        rows: list[tuple[str, ...]] = [("own time", *(["total"] if has_totals else []), "", *ends)]
        for line in largest:
            totals = [f"{self.mean(line.total):.0%}"] if has_totals else []
            rows.append((f"{self.mean(line.own):.0%}", *totals, line.name, *self._ends(line)))
        return rows

    def _ends(self, line: ProfileLine) -> tuple[str, ...]:
        if len(self.ranks) < 2:
            return ()
        least, most = (choose(self.ranks, key=lambda rank: line.own.get(rank, 0.0)) for choose in (min, max))
        return tuple(f"{format_seconds(line.own.get(rank, 0.0))} (rank {rank})" for rank in (least, most))

    def differences(self) -> list[str]:
        """Describe the largest differences between ranks."""
        apart = sorted((self._apart(line) for line in self.lines), reverse=True)[:3]
        return [text for share, text in apart if share >= DIFFERS]

    def _apart(self, line: ProfileLine) -> tuple[float, str]:
        own = {rank: line.own.get(rank, 0.0) for rank in self.ranks}
        middle = (min(own.values(), default=0.0) + max(own.values(), default=0.0)) / 2
        much, little = ([rank for rank in own if (own[rank] > middle) is wanted] for wanted in (True, False))
        if not much or not little:
            return 0.0, ""
        groups = []
        for ranks in (much, little):
            low, high = (format_seconds(choose(own[rank] for rank in ranks)) for choose in (min, max))
            groups.append(f"{high if low == high else f'{low} to {high}'} on {name_ranks(ranks)}")
        share = (max(own.values()) - min(own.values())) / max(self.ranks.values())
        return share, f"ranks differ in {line.name}: {groups[0]}, {groups[1]}"

    def text(self) -> str:
        """Render for terminals, and for front ends without HTML."""
        rows = self.rows() if self.lines else []
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)] if rows else []
        table = [
            "  ".join(f"{field:<{width}}" for field, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        return "\n".join([self.title, *table, *self.differences(), *self.notes])

    def html(self) -> str:
        """Render as a table, which needs neither scripts nor a kernel."""
        rows = ""
        for row in self.rows() if self.lines else []:
            fields = "".join(f'<td style="text-align:left">{html.escape(field)}</td>' for field in row)
            rows += f"<tr>{fields}</tr>"
        notes = "".join(f"<div>{html.escape(note)}</div>" for note in [*self.differences(), *self.notes])
        table = f"<table style='color:inherit;font:inherit'>{rows}</table>"
        return f'<div style="{_STYLE}"><div>{html.escape(self.title)}</div>{table}{notes}</div>'


def save(profile: Profile, path: Path) -> int:
    """Write the file, compressed if its name ends in `.gz`; return its size in bytes. Raises OSError if that fails."""
    data = msgspec.json.encode(profile.content())
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path.stat().st_size


# -- samples ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SampleProfile:
    """The samples of some ranks."""

    title: str
    by_rank: Mapping[int, RankSamples]
    notes: tuple[str, ...] = ()
    viewer = "https://www.speedscope.app"

    @property
    def summary(self) -> ProfileSummary:
        own: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        total: dict[tuple[str, str], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        hottest: dict[tuple[str, str], Counter[CodeLine]] = defaultdict(Counter)
        for rank, stack, seconds in self._seen():
            innermost = stack[-1]
            own[_function(innermost)][rank] += seconds
            users_line = next((line for line in reversed(stack) if is_user_code(line.filename)), innermost)
            hottest[_function(innermost)][users_line] += 1
            for function in set(map(_function, stack)):
                total[function][rank] += seconds
        lines = [ProfileLine(_name(function, hottest[function]), own[function], total[function]) for function in own]
        seen = {rank: sum(thread.length for thread in each.threads) for rank, each in sorted(self.by_rank.items())}
        return ProfileSummary(self.title, seen, tuple(lines), self.notes)

    def _seen(self) -> Iterator[tuple[int, tuple[CodeLine, ...], float]]:
        for rank, samples in self.by_rank.items():
            for thread in samples.threads:
                for sample, seconds in zip(thread.samples, thread.seconds, strict=True):
                    if stack := thread.stacks[sample]:
                        yield rank, stack, seconds

    def content(self) -> dict[str, Any]:
        """Return speedscope's format: a profile for each rank, and one for each of its other threads."""
        frames: dict[CodeLine, int] = {}
        profiles = [
            _rank_profile(f"rank {rank}" + ("" if thread.thread == MAIN else f", {thread.thread}"), thread, frames)
            for rank, samples in sorted(self.by_rank.items())
            for thread in sorted(samples.threads, key=lambda thread: thread.thread != MAIN)
        ]
        shared = [{"name": each.function, "file": short_name(each.filename), "line": each.line} for each in frames]
        about = {"$schema": _SCHEMA, "name": self.title, "exporter": "meshbook", "activeProfileIndex": 0}
        return {**about, "shared": {"frames": shared}, "profiles": profiles}


def _rank_profile(name: str, thread: Any, frames: dict[CodeLine, int]) -> dict[str, Any]:
    stacks = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack in thread.stacks]
    return {
        "type": "sampled",
        "name": name,
        "unit": "seconds",
        "startValue": 0,
        "endValue": sum(thread.seconds),
        "samples": [stacks[at] for at in thread.samples],
        "weights": list(thread.seconds),
    }


def _function(line: CodeLine) -> tuple[str, str]:
    return line.function, line.filename


def _name(function: tuple[str, str], lines: Counter[CodeLine]) -> str:
    """Return `load (cell 7:12)` or `all_reduce, from cell 7:14`, with the user's line that was sampled most."""
    name, filename = function
    ((line, _),) = lines.most_common(1)
    short = short_name(line.filename) if line.filename.startswith("<") else "/".join(Path(line.filename).parts[-2:])
    if filename != line.filename:
        return f"{name}, from {short}:{line.line}"
    return f"{short}:{line.line}" if name == "<module>" else f"{name} ({short}:{line.line})"


# -- operators of torch ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TorchProfile:
    """torch.profiler's data of some ranks."""

    title: str
    by_rank: Mapping[int, OperatorProfile]
    notes: tuple[str, ...] = ()
    viewer = "https://ui.perfetto.dev"

    @property
    def summary(self) -> ProfileSummary:
        """The time on the device if any was recorded, otherwise on the CPU."""
        on_device = any(each.device for profile in self.by_rank.values() for each in profile.operators)
        spent: dict[str, dict[int, float]] = defaultdict(dict)
        for rank, profile in self.by_rank.items():
            for each in profile.operators:
                spent[each.name][rank] = each.device if on_device else each.cpu
        seen = {rank: sum(own.get(rank, 0.0) for own in spent.values()) for rank in sorted(self.by_rank)}
        lines = tuple(ProfileLine(name, own, {}) for name, own in spent.items())
        note = "time on the device" if on_device else "time on the CPU"
        return ProfileSummary(f"{self.title} ({note})", seen, lines, self.notes)

    def content(self) -> dict[str, Any]:
        """Return torch's format, with separate processes for each rank."""
        events: list[dict[str, Any]] = []
        for rank, profile in sorted(self.by_rank.items()):
            events += _with_rank_ids(rank, msgspec.json.Decoder().decode(gzip.decompress(profile.trace)))
        first = min((event["ts"] for event in events if event.get("ph") == "X"), default=0)
        for event in events:
            if "ts" in event:
                event["ts"] = max(0.0, event["ts"] - first)
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": self.title}}


def _with_rank_ids(rank: int, content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a rank's events, with process numbers and flow ids that no other rank has."""
    base = content.get("baseTimeNanoseconds", 0) / 1000
    pids: dict[Any, int] = {}
    for event in content["traceEvents"]:
        if "pid" in event:
            event["pid"] = 1000 * (rank + 1) + pids.setdefault(event["pid"], len(pids))
        if "id" in event:
            event["id"] = f"{rank}:{event['id']}"
        if "ts" in event:
            event["ts"] += base
        if event.get("name") == "process_name":
            event["args"] = {"name": f"rank {rank}: {event['args'].get('name', '')}"}
        yield event
