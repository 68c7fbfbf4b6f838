"""Measures bulk data: arrays to one worker and back, beside bare ZeroMQ and a copy in memory.

    python benchmarks/payloads.py [--rounds N] [--json FILE]

Bytes are counted each way; 10^6 of them are one MB. The base (`bare.py`) sends the same bytes as a frame that the other
side returns, without a copy of its own. The copy is numpy's, into memory that was written to before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from bare import BareZeroMQ
from report import Report, arguments, percentiles

from meshbook import Actor, close_session, endpoint, this_host

SIZES = {"1 KB": 10**3, "64 KB": 64 * 10**3, "1 MB": 10**6, "10 MB": 10**7}
TIMES = {"1 KB": 500, "64 KB": 300, "1 MB": 60, "10 MB": 12}


class Echo(Actor):
    """The worker's side."""

    @endpoint
    def echo(self, value: Any) -> Any:
        return value


def rate(size: int, work: Callable[[], object], times: int) -> float:
    """Return MB per second, there and back, by the median of so many times."""
    return 2 * size / percentiles(work, times)[0] / 1e6


def measure(report: Report, bare: BareZeroMQ, echo: Any, name: str) -> None:
    size, times = SIZES[name], TIMES[name]
    array, other = np.ones(size, np.uint8), np.ones(size, np.uint8)
    data = array.tobytes()

    def copy() -> None:
        np.copyto(other, array)
        np.copyto(array, other)

    figures = {
        "a copy in memory": rate(size, copy, times),
        "bare zmq": rate(size, lambda: bare.carry(array.data), times),
        "an array": rate(size, lambda: echo.call_one(array).get(), times),
        "bytes": rate(size, lambda: echo.call_one(data).get(), times),
    }
    for what, figure in figures.items():
        report.put(f"{name} there and back, {what}", figure, "MB/s")
    report.put(f"{name} there and back, an array, ratio", figures["an array"] / figures["bare zmq"], "x bare")


def main() -> None:
    options = arguments("Arrays to one worker and back.", rounds=7)
    report, bare = Report(), BareZeroMQ()
    workers = this_host().spawn_procs(per_host={"gpus": 1})
    echo = workers.spawn("echo", Echo).echo
    for name in SIZES:
        measure(Report(), bare, echo, name)  # warm-up
    for _ in range(options.rounds):
        for name in SIZES:
            measure(report, bare, echo, name)
    workers.stop().get()
    close_session()
    bare.close()
    report.present("bulk to one worker and back, interleaved", options)


if __name__ == "__main__":
    main()
