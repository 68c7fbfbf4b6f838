"""The lines with which a cell says what it waits for."""

from __future__ import annotations

from typing import Any

import pytest

from meshbook.magics.shell.cell_waits import format_waits
from meshbook.runtime.actor.future import Future
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.node.execution import CallPlace, RunningEndpoint
from meshbook.runtime.wire.messages import Address


def running(endpoint: str, origin: str) -> Future[CallPlace]:
    return Future.completed(CallPlace("in its queue", RunningEndpoint("a", endpoint, origin, 4.0)))


SILENT: Future[CallPlace] = Future.pending()


@pytest.mark.parametrize(
    ("places", "lines"),
    [
        ([running("slow", "local 12")] * 2, ["waits for a.slow() on ranks 0-1, called in cell 12"]),
        ([running("slow", "9.0.3")], ["waits for a.slow() on rank 0, called in cell 9"]),
        ([running("slow", "")], ["waits for a.slow() on rank 0"]),
        (
            [running("slow", "local 3"), running("quick", "local 5")],
            ["waits for a.slow() on rank 0, called in cell 3", "waits for a.quick() on rank 1, called in cell 5"],
        ),
        ([Future.completed(CallPlace("in its queue"))], ["waits for a.quick() on rank 0: in its queue"]),
        ([SILENT], ["waits for a.quick() on rank 0: unresponsive: its process is stopped, or it holds the GIL"]),
        ([Future.failed(ValueError("gone"))], ["waits for a.quick() on rank 0: lost: gone"]),
    ],
)
def test_a_line_names_the_endpoint_that_runs_and_the_cell_of_its_call(places: Any, lines: list[str]) -> None:
    silent = [(rank, Target(Address("m.0", ""), "a-1@c", rank=rank), 7) for rank in range(len(places))]
    assert format_waits("a.quick() on ranks 0-1", silent, places) == lines
