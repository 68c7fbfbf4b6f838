"""Measures calls to several workers, and broadcasts to them, beside bare ZeroMQ.

    python benchmarks/broadcast.py [--rounds N] [--json FILE]

The base (`bare.py`) sends to as many processes and reads as many answers. Broadcasts are counted until all have
arrived: the last message of each side is a call. With more workers than cores, all figures include waiting for a core.
"""

from __future__ import annotations

from typing import Any

from bare import BareZeroMQ
from report import Aim, Report, arguments
from rounds import TURNS, Comparison, format_spread, run_rounds, timed

from meshbook import Actor, close_session, endpoint, this_host

RANKS = (2, 4, 8, 16, 32)
RATIO_AIMS = {8: Aim(1.3), 32: Aim(1.5)}
AIMS = {8: Aim(0.3), 32: Aim(2)}
CALLS = 1600 // TURNS  # of one turn, divided by the ranks
FEWEST_CALLS = 40
RECEIVERS = 4
BROADCASTS = 5000


class SummingActor(Actor):
    """Runs in the workers."""

    def __init__(self) -> None:
        self._sum = 0

    @endpoint
    def echo(self, value: int) -> int:
        return value

    @endpoint
    def add(self, value: int) -> None:
        self._sum += value

    @endpoint
    def take_sum(self) -> int:
        """Return the sum of the values since the last call of this."""
        total, self._sum = self._sum, 0
        return total


def compare_calls(bare: BareZeroMQ, receivers: Any, ranks: int) -> Comparison:
    echo = receivers.slice(gpus=slice(0, ranks)).echo
    count = max(CALLS // ranks, FEWEST_CALLS)
    return Comparison(
        f"call on {ranks} ranks",
        timed(lambda: bare.call_each(ranks), count),
        timed(lambda: echo.call(1).get(), count),
        "ms",
        ratio_aim=RATIO_AIMS.get(ranks, ""),
        aim=AIMS.get(ranks, ""),
    )


def compare_broadcasts(bare: BareZeroMQ, receivers: Any) -> Comparison:
    few = receivers.slice(gpus=slice(0, RECEIVERS))

    def broadcast() -> None:
        for _ in range(BROADCASTS):
            few.add.broadcast(1)
        sums = list(few.take_sum.call().get().values())
        assert sums == [BROADCASTS] * RECEIVERS, sums

    return Comparison(
        f"broadcasts to {RECEIVERS} ranks",
        timed(lambda: bare.broadcast(BROADCASTS)),
        timed(broadcast),
        "broadcasts/s",
        per_run=BROADCASTS,
        ratio_aim=Aim(0.7, is_least=True),
        aim=Aim(40_000, is_least=True),
    )


def main() -> None:
    options = arguments("Calls on several workers, and broadcasts, beside bare ZeroMQ.", rounds=7)
    report, many, few = Report(), BareZeroMQ(max(RANKS)), BareZeroMQ(RECEIVERS)
    workers = this_host().spawn_procs(per_host={"gpus": max(RANKS)})
    receivers: Any = workers.spawn("receiver", SummingActor)
    comparisons = [compare_calls(many, receivers, ranks) for ranks in RANKS]
    comparisons.append(compare_broadcasts(few, receivers))
    run_rounds(report, comparisons, options.rounds)
    workers.stop().get()
    close_session()
    many.close()
    few.close()
    report.present("calls on several workers and broadcasts, in turns", options, format_spread(report, comparisons))


if __name__ == "__main__":
    main()
