"""`%%time` and `%%timeit` above a mesh cell: what they ask for, how often the cell runs, and what is printed."""

from __future__ import annotations

import asyncio

import pytest

from meshbook.magics.cells.timing import CellTimer, format_processors, parse_timer, time_often, time_once
from meshbook.magics.errors import UsageError
from meshbook.magics.results.result import MeshResult, Sources
from meshbook.magics.syntax.argparsing import HelpText
from meshbook.runtime.cells.outcome import CellCost, CellOutcome
from meshbook.runtime.geometry import Extent


def result(*processor_seconds: float) -> MeshResult:
    outcomes = {rank: CellOutcome(CellCost(1.0, cpu, 0)) for rank, cpu in enumerate(processor_seconds)}
    return MeshResult(Extent.of(gpus=len(outcomes)).region, outcomes, Sources(lambda rank, stream: ""))


@pytest.mark.parametrize(
    ("line", "timer"),
    [
        ("%%time", CellTimer(repeats=False)),
        ("%%timeit", CellTimer(repeats=True)),
        ("%%timeit -n 3 -r 2", CellTimer(repeats=True, number=3, repeat=2)),
        ("%%timeit -n3 -q -o -p 5", CellTimer(repeats=True, number=3, quiet=True, gives_result=True, precision=5)),
        ("%%timeit -v took", CellTimer(repeats=True, name="took")),
    ],
)
def test_what_is_asked_for(line: str, timer: CellTimer) -> None:
    assert parse_timer(line) == timer


@pytest.mark.parametrize("line", ["%%time x = 1", "%%timeit x = 1", "%%timeit -n 0", "%%timeit -r many"])
def test_what_cannot_be_asked_for(line: str) -> None:
    with pytest.raises(UsageError, match="%%time"):
        parse_timer(line)


def test_help_is_a_text() -> None:
    assert isinstance(parse_timer("%%timeit --help"), HelpText)


def test_one_run_is_reported_also_where_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> MeshResult:
        return result(0.5, 1.5)

    async def fail() -> MeshResult:
        raise ValueError

    assert len(asyncio.run(time_once(run))) == 2
    first, second = capsys.readouterr().out.splitlines()
    assert first == "CPU times: 2.00 s on 2 ranks, most 1.50 s on r1"
    assert second.startswith("Wall time: ")
    with pytest.raises(ValueError):  # noqa: PT011
        asyncio.run(time_once(fail))
    assert capsys.readouterr().out.startswith("Wall time: ")


def test_one_rank_needs_no_name() -> None:
    assert format_processors(result(0.5)) == "CPU times: 500 ms\n"


def test_many_runs_are_reported_as_by_ipython(capsys: pytest.CaptureFixture[str]) -> None:
    runs = []

    async def run() -> MeshResult:
        runs.append(1)
        return result(0.0)

    told = asyncio.run(time_often(run, CellTimer(repeats=True, number=3, repeat=2)))
    assert (len(runs), told.loops, told.repeat, len(told.all_runs)) == (6, 3, 2, 2)
    assert "per loop (mean ± std. dev. of 2 runs, 3 loops each)" in capsys.readouterr().out
    asyncio.run(time_often(run, CellTimer(repeats=True, number=1, repeat=1, quiet=True)))
    assert capsys.readouterr().out == ""
