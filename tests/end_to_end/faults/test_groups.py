"""Ranks that are stuck in torch.distributed: each kind of wait is broken off from another thread of the process."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from meshbook import Actor, endpoint
from meshbook.runtime.collectives.abort import abort_groups
from tests.support import PATIENCE

AT_ONCE = 5.0  # promised are 0.3 s until a stuck rank is free; gloo by itself would wait for half an hour
pytestmark = pytest.mark.process


class Rank(Actor):
    """Runs what it is sent, on a thread of its own."""

    @endpoint
    def run(self, function: Any, *arguments: Any) -> Any:
        return function(*arguments)


def join() -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")


def all_reduce() -> None:
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(3))


def receive() -> None:
    import torch
    import torch.distributed as dist

    dist.recv(torch.ones(3), 2)


def make_group() -> None:
    import torch.distributed as dist

    dist.new_group([0, 1, 2])


def wait_for_a_key() -> None:
    import torch.distributed.distributed_c10d as c10d

    c10d._get_default_store().get("nobody sets it")


def time_of_failure(function: Callable[[], None]) -> tuple[float, str]:
    """When it failed, by the machine's clock, and of what."""
    try:
        function()
    except Exception as error:
        return time.monotonic(), f"{type(error).__name__}: {error}"
    raise AssertionError("it came to an end")


def is_stuck(*functions: str) -> bool:
    """Whether another thread of this process waits in one of these functions, below the last line of Python."""
    frames = sys._current_frames()
    del frames[threading.get_ident()]  # it would hold itself, and with it the groups that are in the others
    return any(_below_recording(frame).f_code.co_name in functions for frame in frames.values())


def _below_recording(frame: Any) -> Any:
    """The frame that waits, or the one that has called it by way of what records waits."""
    while frame.f_back is not None and frame.f_code.co_filename.endswith("collective_spans.py"):
        frame = frame.f_back
    return frame


def wait_until_stuck(*functions: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_stuck(*functions):
        assert time.monotonic() < deadline, f"no thread came to {functions}"
        threading.Event().wait(0.01)


def abort() -> tuple[float, list[str]]:
    """When it was aborted, by the machine's clock, and what."""
    return time.monotonic(), abort_groups()


def abort_stuck(watchers: Any, *functions: str) -> list[tuple[float, list[str]]]:
    """Abort the groups of all of these ranks, once all of them wait: the first that is freed frees its peers."""
    watchers.run.call(wait_until_stuck, *functions).get(PATIENCE)
    return list(watchers.run.call(abort).get(PATIENCE).values())


@pytest.mark.parametrize(
    ("wait", "where"), [(all_reduce, "all_reduce"), (receive, "recv")], ids=lambda given: getattr(given, "__name__", "")
)
def test_a_rank_that_is_stuck_in_a_collective_is_freed(spawn_procs, wait: Callable[[], None], where: str):
    procs = spawn_procs(3)
    ranks, watchers = procs.spawn("ranks", Rank), procs.spawn("watchers", Rank).slice(gpus=slice(0, 2))
    ranks.run.call(join).get(PATIENCE)

    stuck = ranks.slice(gpus=slice(0, 2)).run.call(time_of_failure, wait)
    aborted = abort_stuck(watchers, where)

    assert [what for _, what in aborted] == [["gloo group of 3 ranks"]] * 2
    first = min(began for began, _ in aborted)
    for failed, why in stuck.get(PATIENCE).values():
        assert failed - first < AT_ONCE
        assert "Connection closed by peer" in why

    # The processes are as good as before: with rank 2 they meet again, at the same port.
    assert "has not been initialized" in ranks.slice(gpus=0).run.call_one(time_of_failure, all_reduce).get(PATIENCE)[1]
    assert ranks.slice(gpus=2).run.call_one(abort_groups).get(PATIENCE) == ["gloo group of 3 ranks"]
    ranks.run.call(join).get(PATIENCE)
    ranks.run.call(all_reduce).get(PATIENCE)


def test_a_rank_that_waits_for_a_store_is_freed(spawn_procs):
    procs = spawn_procs(3)
    ranks, watchers = procs.spawn("ranks", Rank), procs.spawn("watchers", Rank).slice(gpus=slice(0, 2))
    for wait, where in [(wait_for_a_key, "wait_for_a_key"), (make_group, "_new_process_group_helper")]:
        ranks.run.call(join).get(PATIENCE)
        stuck = ranks.slice(gpus=slice(0, 2)).run.call(time_of_failure, wait)
        abort_stuck(watchers, where)
        ranks.slice(gpus=2).run.call(abort_groups).get(PATIENCE)
        assert all("DistNetworkError" in why for _, why in stuck.get(PATIENCE).values())


@pytest.mark.parametrize("missing", [0, 2])
def test_ranks_that_wait_for_one_that_does_not_come_are_freed(spawn_procs, missing: int):
    """Rank 0 has the store: without it the others wait for that to listen."""
    procs = spawn_procs(3)
    here = slice(1, 3) if missing == 0 else slice(0, 2)
    stuck = procs.spawn("ranks", Rank).slice(gpus=here).run.call(time_of_failure, join)
    # The others are a step further than rank 0, if that is there: they wait for what it or the missing one puts there.
    where = ("_create_c10d_store", "_agree_on_next", "_new_process_group_helper")
    aborted = abort_stuck(procs.spawn("watchers", Rank).slice(gpus=here), *where)
    assert ["a process group that was being created"] in [what for _, what in aborted]
    assert all("DistNetworkError" in why for _, why in stuck.get(PATIENCE).values())


def test_a_rank_without_a_group_is_left_alone(spawn_procs):
    probe = spawn_procs(1).spawn("ranks", Rank)
    assert probe.run.call_one(abort_groups).get(PATIENCE) == []
