"""Measures meshbook and a base in turns, and reports their ratio within each round.

Other work on the machine slows both sides of a round equally. So the ratio of one round varies less than either figure,
and the median of several rounds less still. A round has several short turns of each side, not one long one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from report import Aim, Report, seconds_of

TURNS = 4  # of each side in a round; even, because the sides alternate in going first
STEADY = 1.5  # the spread between rounds that a figure should stay under
SCALES = {"us": 1e6, "ms": 1e3, "s": 1.0}

Turn = Callable[[], Sequence[float]]  # measures some runs, and returns the seconds of each


@dataclass(frozen=True)
class Comparison:
    """One workload on two sides: the base, without any runtime, and meshbook.

    A figure is the median of all runs of a round: a latency in `unit`, or a rate in `unit` if `per_run` gives the
    number of items of one run.
    """

    name: str
    base: Turn
    ours: Turn
    unit: str = "us"
    per_run: int | None = None
    ratio_aim: Aim | str = ""
    aim: Aim | str = ""
    base_name: str = "bare zmq"

    def figure(self, seconds: Sequence[float]) -> float:
        middle = statistics.median(seconds)
        return middle * SCALES[self.unit] if self.per_run is None else self.per_run / middle

    def take_turns(self) -> tuple[list[float], list[float]]:
        """Return the seconds of all runs of one round: of the base, and of meshbook."""
        base: list[float] = []
        ours: list[float] = []
        for turn in range(TURNS):
            order = [(self.base, base), (self.ours, ours)]
            for measure, seconds in order if turn % 2 == 0 else reversed(order):
                seconds += measure()
        return base, ours


def run_rounds(report: Report, comparisons: Iterable[Comparison], rounds: int, *others: Callable[[], object]) -> None:
    """Run all comparisons in each round, and then the `others`. An extra turn of each side first warms up."""
    comparisons = list(comparisons)
    for each in comparisons:
        each.base()
        each.ours()
    for _ in range(rounds):
        for each in comparisons:
            put_round(report, each)
        for other in others:
            other()


def put_round(report: Report, comparison: Comparison) -> None:
    base, ours = comparison.take_turns()
    limit, figure = comparison.figure(base), comparison.figure(ours)
    name, unit = comparison.name, comparison.unit
    report.put(f"{name}, {comparison.base_name}", limit, unit)
    report.put(name, figure, unit, comparison.aim)
    report.put(f"{name}, ratio", figure / limit, f"x {comparison.base_name}", comparison.ratio_aim)
    if comparison.per_run is None and len(ours) >= 100:
        report.put(f"{name}, p99", sorted(ours)[len(ours) * 99 // 100] * SCALES[unit], unit)


def format_spread(report: Report, comparisons: Iterable[Comparison]) -> str:
    """Format the figures and ratios that vary too much between rounds."""
    names = [name for each in comparisons for name in (each.name, f"{each.name}, ratio")]
    spreads = {name: report.spread_between_rounds(name) for name in names}
    loose = [f"  {name}: {spread:.2f}" for name, spread in spreads.items() if spread >= STEADY]
    if not loose:
        return f"spread between rounds (max/min): under {STEADY} everywhere"
    return "\n".join([f"spread between rounds (max/min) of {STEADY} or more:", *loose])


def timed(work: Callable[[], object], count: int = 1) -> Turn:
    """Return a turn that times `count` runs of `work`."""
    return lambda: [seconds_of(work) for _ in range(count)]


async def timed_async(work: Callable[[], Awaitable[object]], count: int) -> list[float]:
    """Await `work` `count` times, one after the other, and return the seconds of each."""
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - start)
    return taken
