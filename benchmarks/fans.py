"""Measures calls that several workers answer, and broadcasts that none answers, beside bare ZeroMQ.

    python benchmarks/fans.py [--rounds N] [--json FILE]

The base (`bare.py`) sends to as many processes and reads as many answers. Broadcasts are counted until all have
arrived: the last message of each side is a call. With more workers than cores, all figures include waiting for a core.
"""

from __future__ import annotations

from typing import Any

from bare import Bare
from report import Aim, Report, arguments
from rounds import TURNS, Comparison, format_spread, run_rounds, timed

from meshbook import Actor, close_session, endpoint, this_host

RANKS = (2, 4, 8, 16, 32)
RATIO_AIMS = {8: Aim(1.3), 32: Aim(1.5)}
AIMS = {8: Aim(0.3), 32: Aim(2)}
CALLS = 1600 // TURNS  # of one turn, divided by the ranks
FEWEST_CALLS = 40
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
        """Return the sum of all notes since the last call of this."""
        heard, self._heard = self._heard, 0
        return heard


def compare_calls(bare: Bare, listeners: Any, ranks: int) -> Comparison:
    echo = listeners.slice(gpus=slice(0, ranks)).echo
    count = max(CALLS // ranks, FEWEST_CALLS)
    return Comparison(
        f"call on {ranks} ranks",
        timed(lambda: bare.call_each(ranks), count),
        timed(lambda: echo.call(1).get(), count),
        "ms",
        ratio_aim=RATIO_AIMS.get(ranks, ""),
        aim=AIMS.get(ranks, ""),
    )


def compare_broadcasts(bare: Bare, listeners: Any) -> Comparison:
    few = listeners.slice(gpus=slice(0, LISTENERS))

    def broadcast() -> None:
        for _ in range(BROADCASTS):
            few.note.broadcast(1)
        heard = list(few.heard.call().get().values())
        assert heard == [BROADCASTS] * LISTENERS, heard

    return Comparison(
        f"broadcasts to {LISTENERS} ranks",
        timed(lambda: bare.cast(BROADCASTS)),
        timed(broadcast),
        "casts/s",
        per_run=BROADCASTS,
        ratio_aim=Aim(0.7, is_least=True),
        aim=Aim(40_000, is_least=True),
    )


def main() -> None:
    options = arguments("Calls on several workers, and broadcasts, beside bare ZeroMQ.", rounds=7)
    report, crowd, few = Report(), Bare(max(RANKS)), Bare(LISTENERS)
    workers = this_host().spawn_procs(per_host={"gpus": max(RANKS)})
    listeners: Any = workers.spawn("listener", Listener)
    comparisons = [compare_calls(crowd, listeners, ranks) for ranks in RANKS]
    comparisons.append(compare_broadcasts(few, listeners))
    run_rounds(report, comparisons, options.rounds)
    workers.stop().get()
    close_session()
    crowd.close()
    few.close()
    report.present("calls on several workers and broadcasts, in turns", options, format_spread(report, comparisons))


if __name__ == "__main__":
    main()
