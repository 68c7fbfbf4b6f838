"""What it costs to speak to several workers: a call that all of them answer, and broadcasts that none does.

    python benchmarks/fans.py [--rounds N] [--json FILE]

The bare limit (`bare.py`) sends to as many processes and reads as many answers. Broadcasts are counted until all have
come: the last message of each side is a call. With more workers than cores, all figures include waiting for a core.
"""

from __future__ import annotations

from typing import Any

from bare import Bare
from report import Report, arguments, percentiles, seconds_of

from meshbook import Actor, close_session, endpoint, this_host

RANKS = (2, 4, 8, 16, 32)
AIMS = {8: "0.6", 32: "2.2"}
CALLS = 1600  # of one percentile, divided by the ranks
LISTENERS = 4
BROADCASTS = 5000


class Listener(Actor):
    """The worker's side."""

    def __init__(self) -> None:
        self._heard = 0

    @endpoint
    def echo(self, value: int) -> int:
        return value

    @endpoint
    def note(self, value: int) -> None:
        self._heard += value

    @endpoint
    def heard(self) -> int:
        """How much since the last time it was asked."""
        heard, self._heard = self._heard, 0
        return heard


def measure_calls(report: Report, bare: Bare, listeners: Any, ranks: int) -> None:
    echo = listeners.slice(gpus=slice(0, ranks)).echo
    times = max(CALLS // ranks, 100)
    limit, _ = percentiles(lambda: bare.call_each(ranks), times)
    middle, slow = percentiles(lambda: echo.call(1).get(), times)
    report.put(f"call on {ranks} ranks, bare zmq, p50", limit * 1e3, "ms")
    report.put(f"call on {ranks} ranks, p50", middle * 1e3, "ms", AIMS.get(ranks, ""))
    report.put(f"call on {ranks} ranks, ratio of p50", middle / limit, "x bare")
    report.put(f"call on {ranks} ranks, p99", slow * 1e3, "ms")


def measure_broadcasts(report: Report, bare: Bare, listeners: Any) -> None:
    four = listeners.slice(gpus=slice(0, LISTENERS))

    def broadcast() -> None:
        for _ in range(BROADCASTS):
            four.note.broadcast(1)
        heard = list(four.heard.call().get().values())
        assert heard == [BROADCASTS] * LISTENERS, heard

    limit = BROADCASTS / seconds_of(lambda: bare.cast(BROADCASTS))
    middle = BROADCASTS / seconds_of(broadcast)
    report.put(f"broadcasts to {LISTENERS}, bare zmq", limit, "/s")
    report.put(f"broadcasts to {LISTENERS}", middle, "/s", "20,000")
    report.put(f"broadcasts to {LISTENERS}, ratio", middle / limit, "x bare")


def main() -> None:
    options = arguments("Calls on several workers, and broadcasts.", rounds=7)
    report, crowd, few = Report(), Bare(max(RANKS)), Bare(LISTENERS)
    workers = this_host().spawn_procs(per_host={"gpus": max(RANKS)})
    listeners: Any = workers.spawn("listener", Listener)
    for _ in range(20):  # warm
        crowd.call_each(max(RANKS))
        listeners.echo.call(1).get()
    for _ in range(options.rounds):
        for ranks in RANKS:
            measure_calls(report, crowd, listeners, ranks)
        measure_broadcasts(report, few, listeners)
    workers.stop().get()
    close_session()
    crowd.close()
    few.close()
    report.present("calls on several workers and broadcasts, interleaved", options)


if __name__ == "__main__":
    main()
