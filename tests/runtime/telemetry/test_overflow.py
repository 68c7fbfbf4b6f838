"""A queue that is longer than its memory: nothing lost, nothing in another order, and no file left open."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.runtime.telemetry.overflow import Overflow
from tests.support import open_files


def take_all(queue: Overflow[Any]) -> list[Any]:
    taken = []
    while queue:
        taken += queue.take()
    return taken


@given(st.lists(st.one_of(st.integers(0, 50), st.none()), max_size=60), st.integers(1, 100))
def test_what_goes_in_comes_out_in_order(steps: list[int | None], memory: int) -> None:
    """A number is an item of that size; None takes some."""
    queue: Overflow[tuple[int, str]] = Overflow(memory)
    put, taken = [], []
    for number, size in enumerate(steps):
        if size is None:
            taken += queue.take()
        else:
            put.append((number, "x" * size))
            queue.put(put[-1], size)
    assert taken + take_all(queue) == put
    assert not queue
    assert queue.take() == []
    assert queue.lost == 0


def test_only_so_much_is_taken_at_once() -> None:
    queue: Overflow[str] = Overflow(100)
    for number in range(1000):
        queue.put(f"{number:010}", 10)
    sizes = []
    while queue:
        sizes.append(len(queue.take()))
    assert sum(sizes) == 1000
    assert max(sizes) <= 11


def test_the_file_is_given_back_once_it_has_been_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    queue: Overflow[str] = Overflow(10)
    for _ in range(3):
        for number in range(10):
            queue.put(str(number), 9)
        assert len(open_files(tmp_path)) == 1
        take_all(queue)
        assert open_files(tmp_path) == []


def test_a_full_disk_costs_what_finds_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: Overflow[str] = Overflow(10)
    queue.put("first", 10)

    def refuse(**options: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", refuse)
        queue.put("second", 10)
    queue.put("third", 10)
    assert take_all(queue) == ["first", "third"]
    assert queue.lost == 1
    assert "No space left on device" in queue.why
