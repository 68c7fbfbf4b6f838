"""A profile of torch's operators on one rank, for one cell: torch.profiler around it, on the main thread."""

from __future__ import annotations

import gzip
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.cells.shell import RankShell


class OperatorTotals(msgspec.Struct, frozen=True, array_like=True):
    """An operator of a rank: how often it ran, and the seconds in itself alone on the CPU and on the device."""

    name: str
    calls: int
    cpu: float
    device: float


class OperatorProfile(msgspec.Struct, frozen=True, array_like=True):
    """The profile of a cell by torch.profiler. `seconds`: the cell's duration. `trace`: its gzipped Chrome trace."""

    seconds: float
    operators: tuple[OperatorTotals, ...]
    trace: bytes


class OperatorProfiler(Actor):
    """Profiles the next cell of its rank, from `begin` on."""

    def __init__(self) -> None:
        self._events = RankShell.instance().events
        self._profile: Any = None
        self._is_armed = False
        self._started = self._seconds = 0.0

    @endpoint
    def begin(self) -> None:
        """Profile the next cell."""
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise it prints into the cell's output that it begins
        self._events.register("pre_run_cell", self._enter)
        self._is_armed = True

    @endpoint
    def end(self) -> OperatorProfile:
        """Return the profile. RuntimeError if no cell has run since `begin`."""
        self._disarm()
        if self._profile is None:
            raise RuntimeError("no cell has run on this rank since the profile began")
        return _summarize_profile(self._profile, self._seconds)

    def __cleanup__(self, error: BaseException | None) -> None:
        self._disarm()

    def _enter(self, info: Any) -> None:
        # On the main thread, like `_leave`: torch requires both on one thread.
        from torch.profiler import profile  # weight: users without torch do not need it

        self._disarm()
        self._events.register("post_run_cell", self._leave)
        self._profile = profile()
        self._profile.__enter__()  # the first one takes seconds, which are not the cell's
        self._started = time.monotonic()

    def _leave(self, result: Any) -> None:
        self._seconds = time.monotonic() - self._started
        self._events.unregister("post_run_cell", self._leave)
        self._profile.__exit__(None, None, None)

    def _disarm(self) -> None:
        if self._is_armed:
            self._is_armed = False
            self._events.unregister("pre_run_cell", self._enter)


def _summarize_profile(profile: Any, seconds: float) -> OperatorProfile:
    operators = tuple(
        OperatorTotals(
            each.key,
            each.count,
            each.self_cpu_time_total / 1e6,
            getattr(each, "self_device_time_total", 0.0) / 1e6,
        )
        for each in profile.key_averages()
    )
    with tempfile.TemporaryDirectory(prefix="meshbook-profile-") as folder:
        path = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        return OperatorProfile(seconds, operators, gzip.compress(path.read_bytes(), compresslevel=1))
