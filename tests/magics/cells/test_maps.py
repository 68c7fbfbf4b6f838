"""The bar of a map: when it appears, what it says, and that it ends complete."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from meshbook.magics.cells import maps
from meshbook.magics.cells.maps import format_bar, show_progress
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import CallCancelled

if TYPE_CHECKING:
    from tests.magics.conftest import FakeKernel


class Result:
    """As much of a map's result as a bar looks at."""

    name = "f"

    futures: list[Future[int]]

    def __init__(self, count: int) -> None:
        self._futures = self.futures = [Future.pending() for _ in range(count)]
        self.is_read = False

    def __len__(self) -> int:
        return len(self.futures)

    @property
    def progress(self) -> int:
        return sum(future.done() for future in self.futures)

    def done(self) -> bool:
        return self.progress == len(self)

    def failures(self) -> dict[int, BaseException]:
        settled = {at: future.exception() for at, future in enumerate(self.futures) if future.done()}
        return {at: error for at, error in settled.items() if error is not None}


@pytest.mark.parametrize(
    ("done", "total", "bar"),
    [(0, 4, "░" * 20), (1, 4, "█" * 5 + "░" * 15), (4, 4, "█" * 20)],
)
def test_the_text_of_a_bar(done: int, total: int, bar: str) -> None:
    assert format_bar("f", done, total, 72.0) == f"map of f {bar} {done}/{total} 01:12"


def test_a_bar_is_replaced_in_its_cell_and_ends_complete(
    kernel: FakeKernel, shell: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "QUIET", 0.0)
    monkeypatch.setattr(maps, "EACH", 1000.0)
    result: Any = Result(3)
    show_progress(shell, result)
    kernel.parent = "cell 2"
    for future in result.futures:
        future.resolve(lambda: 1)
    shown = [(kind, content["data"]["text/plain"].split()[-2], parent) for kind, content, parent in kernel.sent]
    assert shown == [("display_data", "1/3", "cell 1"), ("update_display_data", "3/3", "cell 1")]


def test_a_quick_map_shows_no_bar(kernel: FakeKernel, shell: SimpleNamespace) -> None:
    result: Any = Result(2)
    show_progress(shell, result)
    for future in result.futures:
        future.fail(ValueError())
    assert kernel.sent == []


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_read", [False, True])
def test_failures_that_nothing_reads_are_reported_after_the_cell(
    kernel: FakeKernel, shell: SimpleNamespace, *, is_read: bool, is_late: bool
) -> None:
    result: Any = Result(3)
    show_progress(shell, result)

    def settle() -> None:
        result.futures[0].fail(ValueError("bad\nworse"))
        result.futures[1].fail(CallCancelled("cancelled"))
        result.futures[2].resolve(lambda: 1)

    if not is_late:
        settle()
    result.is_read = is_read
    assert kernel.sent == []
    shell.events.trigger("post_run_cell", None)
    if is_late:
        settle()
    shell.events.trigger("post_run_cell", None)
    said = "map of f: 1 of 3 items failed, and no code has read that (get() of its result raises it); item 0: bad\n"
    assert kernel.texts == ([] if is_read else [("cell 1", said)])
