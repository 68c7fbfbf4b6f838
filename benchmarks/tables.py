"""Measures tables: Arrow, Polars and pandas to one worker and back, to four, and by rows, beside a copy in memory.

    python benchmarks/tables.py [--rounds N] [--json FILE]

64 MB of each; 10^6 bytes are one MB. Bytes are counted once for each place where they arrive: twice for there and back,
four times for four ranks, once for a scatter. The copy is numpy's, into memory that was written to before. Pickle's own
figure is a round trip of dumps and loads in one process, also in warm memory.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from report import Report, arguments, percentiles

from meshbook import Actor, close_session, endpoint, this_host
from meshbook.magics.variables.split import split

SIZE = 64 * 10**6
RANKS = 4
TIMES = 5  # of each in a round; the first ones touch new memory


class Holder(Actor):
    """The worker's side."""

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def keep(self, value: Any) -> None:
        self.value = value

    @endpoint
    def give(self) -> Any:
        return self.value


def make_values() -> dict[str, Any]:
    rows = SIZE // 16
    frame = pl.DataFrame({"n": np.arange(rows), "x": np.random.default_rng(7).random(rows)})
    texts = pl.DataFrame({"s": [f"row number {index:,} of a text" for index in range(SIZE // 40)]})
    table = frame.to_arrow()
    return {
        "a NumPy array": np.ones(SIZE // 8),
        "a Polars frame": frame,
        "a Polars frame of texts": texts,
        "an Arrow table": table,
        "an eighth of an Arrow table": pl.concat([frame] * 8).to_arrow().slice(3 * rows, rows),
        "a pandas frame": frame.to_pandas(),
    }


def bytes_of(value: Any) -> int:
    if isinstance(value, pl.DataFrame):
        return int(value.estimated_size())
    return int(value.nbytes if hasattr(value, "nbytes") else value.memory_usage(index=False).sum())


def rate(size: int, work: Callable[[], object]) -> float:
    """Return GB per second, by the median."""
    return size / percentiles(work, TIMES)[0] / 1e9


def measure(report: Report, holders: Any, values: dict[str, Any]) -> None:
    source, target = np.ones(SIZE, np.uint8), np.ones(SIZE, np.uint8)
    memory = rate(SIZE, lambda: np.copyto(target, source))
    report.put("a copy in memory", memory, "GB/s")
    first = holders.slice(gpus=0)
    for name, value in values.items():
        size = bytes_of(value)

        def scatter(value: Any = value) -> None:
            pieces = enumerate(split(value, RANKS))
            for future in [holders.slice(gpus=rank).keep.call_one(piece) for rank, piece in pieces]:
                future.get()

        figures = {
            "pickle's own, made and taken apart": 2 * rate(size, lambda: pickle.loads(pickle.dumps(value, 5))),  # noqa: B023
            "to one rank and back": 2 * rate(size, lambda: first.echo.call_one(value).get()),  # noqa: B023
            "to four ranks": RANKS * rate(size, lambda: holders.keep.call(value).get()),  # noqa: B023
            "scattered": rate(size, scatter),
            "gathered": rate(size, lambda: holders.give.call().get()),
        }
        for what, figure in figures.items():
            report.put(f"{name}, {what}", figure, "GB/s")
        report.put(f"{name}, scattered, ratio", figures["scattered"] / memory, "x a copy")


def main() -> None:
    options = arguments("Tables to workers and back.", rounds=5)
    report, values = Report(), make_values()
    workers = this_host().spawn_procs(per_host={"gpus": RANKS})
    holders = workers.spawn("holders", Holder)
    measure(Report(), holders, values)  # warm-up
    for _ in range(options.rounds):
        measure(report, holders, values)
    workers.stop().get()
    close_session()
    report.present("tables to four workers and back, interleaved", options)


if __name__ == "__main__":
    main()
