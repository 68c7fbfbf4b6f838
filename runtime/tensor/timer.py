"""`ExecutionTimer`: the times of named parts of a program, in the process that runs them.

Three remote functions do the same on the ranks:

    execution_timer_start("forward")
    y = model(x)
    execution_timer_stop("forward")
    fetch_shard(get_execution_timer_average_ms("forward"), gpus=1).get()
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Iterator
from typing import Any, ClassVar, Final

import torch

from meshbook.runtime import devices
from meshbook.runtime.tensor.remote import remote

MOST_MEASUREMENTS: Final = 10_000  # of a name; the oldest go first
Instant = Any  # seconds of the clock, or an event of a CUDA stream


class ExecutionTimer:
    """Measures named parts of a program. Where CUDA is in use, a time is one of the current CUDA stream.

    with ExecutionTimer.time("forward"):
        y = model(x)
    ExecutionTimer.summary()
    """

    _begun: ClassVar[dict[str, Instant]] = {}
    _measured: ClassVar[dict[str, collections.deque[tuple[Instant, Instant]]]] = {}

    @classmethod
    @contextlib.contextmanager
    def time(cls, name: str = "default", use_cpu: bool = False) -> Iterator[None]:
        """Measure the block; also if it raises. `use_cpu` takes the clock of the CPU."""
        cls.start(name, use_cpu)
        try:
            yield
        finally:
            cls.stop(name)

    @classmethod
    def start(cls, name: str = "default", use_cpu: bool = False) -> None:
        """Begin a measurement, in place of one of this name that has begun."""
        event = None if use_cpu else devices.record_event(is_timed=True)
        cls._begun[name] = time.perf_counter() if event is None else event

    @classmethod
    def stop(cls, name: str = "default") -> None:
        """End a measurement. Raises ValueError if none of this name has begun."""
        if name not in cls._begun:
            raise ValueError(f"no measurement {name!r} has begun: call start({name!r}) first")
        begun = cls._begun.pop(name)
        ended = time.perf_counter() if isinstance(begun, float) else devices.record_event(is_timed=True)
        if ended is not None:  # a block that ends in the capture of a graph has no time
            cls._measured.setdefault(name, collections.deque(maxlen=MOST_MEASUREMENTS)).append((begun, ended))

    @classmethod
    def measurements(cls, name: str = "default") -> list[float]:
        """Return the measurements of a name in milliseconds, the oldest first; waits for CUDA."""
        return [_milliseconds(*each) for each in cls._measured.get(name, ())]

    @classmethod
    def average_ms(cls, name: str = "default") -> float:
        """Return the mean in milliseconds; NaN without measurements."""
        found = cls.measurements(name)
        return sum(found) / len(found) if found else float("nan")

    @classmethod
    def summary(cls) -> dict[str, dict[str, float]]:
        """Return the number of measurements, their sum and their mean in milliseconds, by name."""
        found = {name: cls.measurements(name) for name in cls._measured}
        return {
            name: {"count": len(each), "total_ms": sum(each), "average_ms": sum(each) / len(each)}
            for name, each in found.items()
        }

    @classmethod
    def reset(cls) -> None:
        """Forget all measurements."""
        cls._begun.clear()
        cls._measured.clear()


def _milliseconds(begun: Instant, ended: Instant) -> float:
    if isinstance(begun, float):
        return (ended - begun) * 1000  # type: ignore[no-any-return]
    ended.synchronize()
    return float(begun.elapsed_time(ended))


def _average(name: str = "default") -> torch.Tensor:
    return torch.tensor(ExecutionTimer.average_ms(name), dtype=torch.float64)


execution_timer_start = remote(ExecutionTimer.start, propagate=lambda *_, **__: None)
execution_timer_stop = remote(ExecutionTimer.stop, propagate=lambda *_, **__: None)
get_execution_timer_average_ms = remote(_average, propagate=lambda *_: torch.empty((), dtype=torch.float64))
