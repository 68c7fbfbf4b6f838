"""The report that the benchmarks share: figures by name, their median and spread over the rounds, a table, a JSON file.

Timings on a shared machine vary. So a benchmark measures both sides of a comparison in turns, several rounds in one
run, and reports the ratio; compare figures of one run only.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Aim:
    """A bound for the median of a figure. The table marks a miss; a miss does not fail a benchmark."""

    bound: float
    is_least: bool = False

    def __str__(self) -> str:
        return f"at {'least' if self.is_least else 'most'} {_short(self.bound)}"

    def holds_for(self, value: float) -> bool:
        return value >= self.bound if self.is_least else value <= self.bound


class Report:
    """Figures by name, one per round."""

    def __init__(self) -> None:
        self._rounds: dict[str, list[float]] = {}
        self._units: dict[str, str] = {}
        self._aims: dict[str, Aim | str] = {}

    def put(self, name: str, value: float, unit: str, aim: Aim | str = "") -> None:
        """Record one round's figure; `aim` is shown beside it, and never enforced."""
        self._rounds.setdefault(name, []).append(value)
        self._units[name] = unit
        self._aims[name] = aim

    def present(self, heading: str, options: argparse.Namespace, conclusion: str = "") -> None:
        """Print the table and the conclusion; write the files that were requested."""
        text = f"{heading}, {options.rounds} rounds, {os.cpu_count()} cores; {_format_versions()}\n{self.table()}"
        text += f"\n\n{conclusion}" if conclusion else ""
        print(text)
        if options.json:
            self.write(options.json)
            options.json.with_suffix(".txt").write_text(f"{text}\n")

    def median(self, name: str) -> float | None:
        """Return the median of a figure over the rounds; None if it was not measured."""
        return statistics.median(self._rounds[name]) if name in self._rounds else None

    def latest(self, name: str) -> float:
        """Return the figure of the last round."""
        return self._rounds[name][-1]

    def spread_between_rounds(self, name: str) -> float:
        """Return the largest figure of a round divided by the smallest; 1 if they are equal, infinite if one is 0."""
        least, most = min(self._rounds[name]), max(self._rounds[name])
        return most / least if least else (1.0 if most == least else math.inf)

    def table(self) -> str:
        """Return a line per figure: the median, smallest and largest of the rounds, their spread, and the aim."""
        rows = [("", "median", "min .. max", "max/min", "unit", "aim")]
        for name, values in self._rounds.items():
            limits = f"{_short(min(values))} .. {_short(max(values))}"
            spread = f"{self.spread_between_rounds(name):.2f}"
            rows.append(
                (name, _short(statistics.median(values)), limits, spread, self._units[name], self._verdict(name))
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(_line(row, widths) for row in rows)

    def _verdict(self, name: str) -> str:
        """Return the aim, and whether the median misses it."""
        aim = self._aims[name]
        is_missed = isinstance(aim, Aim) and not aim.holds_for(statistics.median(self._rounds[name]))
        return f"{aim}, MISSED" if is_missed else str(aim)

    def write(self, file: Path) -> None:
        """Write all rounds of all figures as JSON."""
        figures = {
            name: {
                "unit": self._units[name],
                "aim": str(self._aims[name]),
                "median": statistics.median(values),
                "spread": self.spread_between_rounds(name),
                "rounds": values,
            }
            for name, values in self._rounds.items()
        }
        file.write_text(json.dumps(figures, indent=2) + "\n")


def _format_versions() -> str:
    """Return the day and what was measured: `2026-11-21, Python 3.11.13, meshbook 0.2.0, torch 2.13.0`."""
    versions = {"Python": platform.python_version()}
    for package in ("meshbook", "torch"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # some benchmarks need no torch
            versions[package] = importlib.metadata.version(package)
    return ", ".join([time.strftime("%Y-%m-%d"), *map(" ".join, versions.items())])


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *figures = (
        cell.ljust(width) if index in (0, 4, 5) else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join((name, *figures)).rstrip()


def seconds_of(work: Callable[[], object]) -> float:
    """Return the seconds of a call of `work`."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def percentiles(work: Callable[[], object], times: int) -> tuple[float, float]:
    """Return the 50th and 99th percentile of the time of one call, in seconds."""
    return spread([seconds_of(work) for _ in range(times)])


def spread(taken: Sequence[float]) -> tuple[float, float]:
    """Return the 50th and 99th percentile."""
    ordered = sorted(taken)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]


def arguments(description: str, rounds: int) -> argparse.Namespace:
    """Parse `--rounds N` and `--json FILE`."""
    parser = json_option(argparse.ArgumentParser(description=description))
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser.parse_args()


def json_option(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add `--json FILE` to the options of a benchmark. The output of its ranks is not part of the report."""
    os.environ["MESHBOOK_SHOW_OUTPUT"] = "0"
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rounds there, and the table beside it")
    return parser
