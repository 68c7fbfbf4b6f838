"""Memory that is lent, and moved by others, for `chaos_transfers.py`: every byte that comes is compared.

A stretch of memory has a key, and its bytes follow from that. What is dropped is overwritten at once with a byte that
no stretch has: so who reads too late, and does not notice, is found out; and so is who writes too late, since it has
to stay as it is.
"""

from __future__ import annotations

import collections
import itertools
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from meshbook import Actor, RDMABuffer, endpoint
from meshbook.runtime.errors import BufferDropped, OwnerGone

KIB, MIB = 1 << 10, 1 << 20
SHARED = (64 * KIB, MIB, 4 * MIB)  # bytes of what all may read
SLOT = 2 * MIB  # of what one other may write to
LARGEST = max(*SHARED, SLOT)
GARBAGE = 0xEE
AT_A_TIME = 4  # reads that one process has under way
RETIRED = 4  # stretches that are looked at once more after they were dropped
_SPREAD = MIB
_NOISE = np.random.default_rng(7).integers(0, GARBAGE, _SPREAD + LARGEST, np.uint8)


def pattern(key: int, offset: int, size: int) -> Any:
    """The bytes of the stretch with this key, from there on."""
    begin = key * 4099 % _SPREAD + offset
    return _NOISE[begin : begin + size]


class Lent(NamedTuple):
    """A stretch of memory of this owner."""

    owner: int
    key: int
    buffer: RDMABuffer


class Shelf(NamedTuple):
    """What an owner lends: to all, and to each of the others alone."""

    shared: list[Lent]
    slots: list[Lent]


class Task(NamedTuple):
    """One transfer, or two: what is written is read again."""

    lent: Lent
    offset: int
    size: int
    is_write: bool


class Tally(NamedTuple):
    """What came of some tasks."""

    outcomes: collections.Counter[str]
    gone: set[int]  # owners
    wrong: list[str]


class Owner:
    """What one process lends."""

    def __init__(self, number: int, movers: int) -> None:
        self._number = number
        self._keys = itertools.count(os.getpid() * 1000)
        self._memory: dict[int, Any] = {}
        self._retired: collections.deque[Any] = collections.deque()
        self._shared = [self._lend(size) for size in SHARED]
        self._slots = [self._lend(SLOT) for _ in range(movers)]

    def shelf(self) -> Shelf:
        return Shelf(list(self._shared), list(self._slots))

    def renew(self, index: int, is_slot: bool) -> tuple[Shelf, list[str]]:
        """Drop a stretch, and lend another one; what is lent then, and what was found to be wrong."""
        kind = self._slots if is_slot else self._shared
        old, kind[index] = kind[index], self._lend(kind[index].buffer.size())
        old.buffer.drop().get(30)
        memory = self._memory.pop(old.key)
        memory.fill(GARBAGE)
        self._retired.append(memory)
        return self.shelf(), [] if len(self._retired) <= RETIRED else self._look_again(self._retired.popleft())

    def _lend(self, size: int) -> Lent:
        key = next(self._keys)
        memory = self._memory[key] = pattern(key, 0, size).copy()
        return Lent(self._number, key, RDMABuffer(memory))

    def _look_again(self, memory: Any) -> list[str]:
        count = int(np.count_nonzero(memory != GARBAGE))
        return [f"{count} bytes of owner {self._number} were written after they had been dropped"] if count else []


class Hand:
    """Moves data, and looks at all of it."""

    def __init__(self) -> None:
        self._targets = [np.zeros(LARGEST, np.uint8) for _ in range(AT_A_TIME)]

    def do(self, tasks: Sequence[Task]) -> Tally:
        tally = Tally(collections.Counter(), set(), [])
        reads = [task for task in tasks if not task.is_write]
        for begin in range(0, len(reads), AT_A_TIME):
            self._read(reads[begin : begin + AT_A_TIME], tally)
        for task in tasks:
            if task.is_write:
                self._write(task, tally)
        return tally

    def _read(self, tasks: Sequence[Task], tally: Tally) -> None:
        """At the same time."""
        begun = []
        for task, memory in zip(tasks, self._targets, strict=False):
            target = memory[: task.size]
            target.fill(GARBAGE)
            begun.append((task, target, task.lent.buffer.read_into(target, task.offset, task.size)))
        for task, target, future in begun:
            if _settle(task, future, tally):
                _compare(task, target, pattern(task.lent.key, task.offset, task.size), tally)

    def _write(self, task: Task, tally: Tally) -> None:
        """And read it again: nobody else writes there."""
        source = pattern(task.lent.key + task.size, task.offset, task.size)
        if _settle(task, task.lent.buffer.write_from(source, task.offset, task.size), tally):
            target = self._targets[0][: task.size]
            if _settle(task, task.lent.buffer.read_into(target, task.offset, task.size), tally):
                _compare(task, target, source, tally)


def _settle(task: Task, future: Any, tally: Tally) -> bool:
    """Whether it was done."""
    error = future.exception(60)
    if error is None:
        tally.outcomes["done"] += 1
    elif isinstance(error, BufferDropped):
        tally.outcomes["dropped"] += 1
    elif isinstance(error, OwnerGone):
        tally.outcomes["gone"] += 1
        tally.gone.add(task.lent.owner)
    else:
        tally.wrong.append(f"{task}: {error!r}")
    return error is None


def _compare(task: Task, found: Any, due: Any, tally: Tally) -> None:
    if not np.array_equal(found, due):
        bad = np.flatnonzero(found != due)
        garbage = int(np.count_nonzero(found == GARBAGE))
        tally.wrong.append(f"{task}: {len(bad)} wrong bytes from {bad[0]} on, {garbage} of what was dropped")


class Lender(Actor):
    """An owner in a worker."""

    def __init__(self, number: int, movers: int) -> None:
        self._owner = Owner(number, movers)

    @endpoint
    def shelf(self) -> Shelf:
        return self._owner.shelf()

    @endpoint
    def renew(self, index: int, is_slot: bool) -> tuple[Shelf, list[str]]:
        return self._owner.renew(index, is_slot)


class Mover(Actor):
    """A hand in a worker."""

    def __init__(self) -> None:
        self._hand = Hand()

    @endpoint
    def do(self, tasks: Sequence[Task]) -> Tally:
        return self._hand.do(tasks)

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def pid(self) -> int:
        return os.getpid()
