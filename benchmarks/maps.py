"""Measures load-balanced maps: quick items on four ranks, beside their ideal and beside ipyparallel.

    python benchmarks/maps.py [--rounds N] [--items N] [--json FILE]

An item sleeps a millisecond, so that the ranks do not compete for cores. The base is the ideal on this machine: each
rank does its share in a loop, in one call, without any scheduler. ipyparallel's load-balanced view, where that is
installed, maps the same function with chunks of one item, its default, and of ten.
"""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from peers import ipyparallel
from report import Aim, Report, json_option, seconds_of
from rounds import Comparison, format_spread, run_rounds, timed

from meshbook import Actor, close_session, endpoint, this_host

RANKS = 4
CHUNKS = (1, 10)  # of ipyparallel


def nap(item: int) -> int:
    import time  # ipyparallel replaces the globals of a function of `__main__` by those of its engine

    time.sleep(0.001)
    return item


class Loop(Actor):
    """Runs its share of the items in a loop."""

    @endpoint
    def run(self, count: int) -> None:
        for item in range(count):
            nap(item)


def compare_map(procs: Any, loops: Any, count: int, chunksize: Any) -> Comparison:
    def run() -> None:
        assert procs.map(nap, range(count), chunksize=chunksize).get() == list(range(count))

    return Comparison(
        f"map of {count:,} items of 1 ms, chunksize {chunksize}",
        timed(lambda: loops.run.call(count // RANKS).get()),
        timed(run),
        unit="s",
        ratio_aim=Aim(1.2) if chunksize == "auto" else "",
        base_name="ideal",
    )


def measure_peer(report: Report, view: Any, count: int) -> None:
    for chunksize in CHUNKS:

        def run(chunksize: int = chunksize) -> None:
            assert view.map_sync(nap, range(count), chunksize=chunksize) == list(range(count))

        name = f"map of {count:,} items of 1 ms, chunksize {chunksize}, ipyparallel"
        report.put(name, seconds_of(run), "s")


def main() -> None:
    parser = json_option(argparse.ArgumentParser(description=__doc__))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--items", type=int, default=10_000)
    options = parser.parse_args()
    report = Report()
    procs = this_host().spawn_procs(per_host={"gpus": RANKS})
    loops = procs.spawn("loops", Loop)
    loops.initialized.get()
    comparisons = [compare_map(procs, loops, options.items, chunksize) for chunksize in ("auto", 1)]
    with contextlib.ExitStack() as stack:
        view = stack.enter_context(ipyparallel(RANKS))
        others = [lambda: measure_peer(report, view, options.items)] if view is not None else []
        run_rounds(report, comparisons, options.rounds, *others)
    procs.stop().get()
    close_session()
    report.present(f"load-balanced maps, {RANKS} ranks", options, format_spread(report, comparisons))


if __name__ == "__main__":
    main()
