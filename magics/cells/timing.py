"""`%%time` and `%%timeit` above a mesh cell: the time that the notebook waits for it, ranks and messages included.

A timer below `%%mesh` is run by IPython on each rank.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from IPython.core.magics.execution import TimeitResult

from meshbook.magics.errors import UsageError
from meshbook.magics.results.result import MeshResult
from meshbook.magics.syntax.argparsing import HelpRequested, HelpText, Parser, count, parse_words, split_words, variable
from meshbook.runtime.formats import format_seconds

SHORTEST = 0.2  # seconds that one measurement takes at least, as in IPython
Run = Callable[[], Awaitable[MeshResult]]


@dataclass(frozen=True)
class CellTimer:
    """The options of a timer line: `number` of runs in a measurement (None: as many as take 0.2 s), and `repeat`."""

    repeats: bool
    number: int | None = None
    repeat: int = 7
    precision: int = 3
    quiet: bool = False
    gives_result: bool = False
    name: str | None = None


def parse_timer(line: str) -> CellTimer | HelpText:
    """Parse a line such as `%%time` or `%%timeit -n 10`; UsageError for anything else."""
    word, *rest = line.removeprefix("%%").split(maxsplit=1)
    text = rest[0] if rest else ""
    if word == "time":
        if text:
            raise UsageError(f"%%time above a mesh cell takes no arguments, got {text!r}")
        return CellTimer(repeats=False)
    try:
        return CellTimer(repeats=True, **vars(parse_words(_timeit_parser(), split_words(text))))
    except HelpRequested as asked:
        return HelpText(asked.text)


async def time_once(run: Run) -> MeshResult:
    """Run the cell, and print how long that took, also if it fails."""
    started = time.perf_counter()
    used = ""
    try:
        result = await run()
        used = format_processors(result)
        return result
    finally:
        print(f"{used}Wall time: {format_seconds(time.perf_counter() - started)}")


def format_processors(result: MeshResult) -> str:
    """Return `CPU times: 3.21 s on 8 ranks, most 0.50 s on r5`."""
    costs = {rank: cost.cpu for rank, cost in result.cost.by_rank.items()}
    most = max(costs, key=lambda rank: costs[rank])
    whole = format_seconds(sum(costs.values()))
    if len(costs) == 1:
        return f"CPU times: {whole}\n"
    return f"CPU times: {whole} on {len(costs)} ranks, most {format_seconds(costs[most])} on r{most}\n"


async def time_often(run: Run, timer: CellTimer) -> Any:
    """Run the cell repeatedly, and print how long one run takes, as IPython does for a statement."""
    number = timer.number or await _find_number(run)
    runs = [await _measure(run, number) / number for _ in range(timer.repeat)]
    result = TimeitResult(number, timer.repeat, min(runs), max(runs), runs, 0.0, timer.precision)
    if not timer.quiet:
        print(result)
    return result


async def _find_number(run: Run) -> int:
    number = 1
    while True:
        for factor in (1, 2, 5):
            if await _measure(run, number * factor) >= SHORTEST:
                return number * factor
        number *= 10


async def _measure(run: Run, number: int) -> float:
    started = time.perf_counter()
    for _ in range(number):
        await run()
    return time.perf_counter() - started


def _timeit_parser() -> Parser:
    parser = Parser(prog="%%timeit", description="Time a mesh cell by running it repeatedly.")
    parser.add_argument("-n", dest="number", metavar="N", type=count, help="number of runs per measurement")
    parser.add_argument("-r", dest="repeat", metavar="R", type=count, default=7, help="number of measurements (7)")
    parser.add_argument("-p", dest="precision", metavar="P", type=count, default=3, help="number of digits (3)")
    parser.add_argument("-q", dest="quiet", action="store_true", help="print nothing")
    parser.add_argument("-o", dest="gives_result", action="store_true", help="the cell's value is the TimeitResult")
    parser.add_argument("-v", dest="name", metavar="NAME", type=variable, help="variable for the TimeitResult")
    return parser
