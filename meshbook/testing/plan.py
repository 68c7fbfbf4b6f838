"""The plan of the faults, with time and rank of each: pure, and the same for the same seed.

Each kind of fault is a Poisson process: its rate is the mean number a second, over all ranks together.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

import msgspec

Kind = Literal["kill", "stop", "delay", "drop"]
Range = tuple[float, float]
KINDS: Final[tuple[Kind, ...]] = ("kill", "stop", "delay", "drop")  # in the order of `Rates`


class Rates(NamedTuple):
    """The mean number of faults of each kind per second."""

    kill: float = 0.0
    stop: float = 0.0
    delay: float = 0.0
    drop: float = 0.0


class Event(msgspec.Struct, frozen=True):
    """One fault: `at` seconds after the start, and its length; a kill has none."""

    at: float
    kind: Kind
    rank: int
    seconds: float = 0.0


def plan(
    seed: int,
    ranks: Sequence[int],
    rates: Rates,
    *,
    lasting: Range = (0.05, 0.5),
    seconds: float = math.inf,
    most: int | None = None,
) -> Iterator[Event]:
    """Yield the faults in the order of time; infinitely many without `seconds` and `most`.

    `lasting` is the range of the lengths of stops, delays and drops. A rank has one fault at a time: if all ranks have
    one, the next is skipped.
    """
    events = itertools.takewhile(lambda event: event.at < seconds, _draw(random.Random(seed), ranks, rates, lasting))
    return itertools.islice(events, most)


def _draw(rng: random.Random, ranks: Sequence[int], rates: Rates, lasting: Range) -> Iterator[Event]:
    total = sum(rates)
    if not ranks or not total:
        return
    at, busy_until = 0.0, dict.fromkeys(ranks, 0.0)
    while True:
        at += rng.expovariate(total)
        (kind,) = rng.choices(KINDS, rates)
        seconds = 0.0 if kind == "kill" else rng.uniform(*lasting)
        free = [rank for rank in ranks if busy_until[rank] <= at]
        if free:
            rank = rng.choice(free)
            busy_until[rank] = at + seconds
            yield Event(at, kind, rank, seconds)
