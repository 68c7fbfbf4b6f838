"""Errors of ordinary cells end at the line of the user, and so do their causes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from meshbook.magics.shell.local_cells import trim_tracebacks
from meshbook.runtime.errors import TransferError
from meshbook.runtime.memory.local_memory import local_memory


class Table:
    """IPython's, as far as it is used: shows how many frames the error and its cause have."""

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def structured_traceback(self, etype: Any, evalue: Any, etb: Any) -> list[int]:
        return [depth(etb), depth(evalue.__cause__.__traceback__)]


def depth(trace: Any) -> int:
    return 0 if trace is None else 1 + depth(trace.tb_next)


def found_out_by_us() -> TypeError:
    """An error with one frame, of ours."""
    with pytest.raises(TypeError) as caught:
        local_memory(None, "data")
    return caught.value.with_traceback(caught.tb.tb_next)


@pytest.mark.parametrize(("mode", "frames"), [("Context", [1, 0]), ("Verbose", [1, 1])])
def test_a_cause_of_which_nothing_is_the_users_has_its_last_line_alone(mode: str, frames: list[int]) -> None:
    shell = SimpleNamespace(InteractiveTB=Table(mode))
    trim_tracebacks(shell)
    with pytest.raises(TransferError) as caught:
        raise TransferError("no way") from found_out_by_us()
    assert shell.InteractiveTB.structured_traceback(caught.type, caught.value, caught.tb) == frames
