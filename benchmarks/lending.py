"""Owners of memory and movers of it, for `chaos_transfers.py`: every received byte is compared.

A stretch of memory has a key, which determines its bytes. A dropped stretch is overwritten at once with a byte that no
stretch contains. So a read that comes too late without an error is detected; so is a late write, since the memory must
stay as it is.
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
SHARED = (64 * KIB, MIB, 4 * MIB)  # bytes of the stretches that all may read
SLOT = 2 * MIB  # bytes of a stretch that one other process may write to
LARGEST = max(*SHARED, SLOT)
GARBAGE = 0xEE
AT_A_TIME = 4  # concurrent reads of one process
RETIRED = 4  # dropped stretches that are checked once more later
_SPREAD = MIB
_NOISE = np.random.default_rng(7).integers(0, GARBAGE, _SPREAD + LARGEST, np.uint8)


def pattern(key: int, offset: int, size: int) -> Any:
    """Return bytes of the stretch with this key, from the offset on."""
    begin = key * 4099 % _SPREAD + offset
    return _NOISE[begin : begin + size]


class Lent(NamedTuple):
    """A stretch of memory of this owner."""

    owner: int
    key: int
    buffer: RDMABuffer


class Shelf(NamedTuple):
    """The stretches of an owner: those for all, and those for each other process alone."""

    shared: list[Lent]
    slots: list[Lent]


class Task(NamedTuple):
    """One transfer, or two: written bytes are read back."""

    lent: Lent
    offset: int
    size: int
    is_write: bool


class Tally(NamedTuple):
    """The outcomes of some tasks."""

    outcomes: collections.Counter[str]
    gone: set[int]  # owners
    wrong: list[str]


class Owner:
    """The stretches of memory of one process."""

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
        """Drop a stretch, and provide another one; returns the present shelf, and the errors found."""
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
    """Moves data, and checks all of it."""

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
        """Read these at the same time."""
        begun = []
        for task, memory in zip(tasks, self._targets, strict=False):
            target = memory[: task.size]
            target.fill(GARBAGE)
            begun.append((task, target, task.lent.buffer.read_into(target, task.offset, task.size)))
        for task, target, future in begun:
            if _settle(task, future, tally):
                _compare(task, target, pattern(task.lent.key, task.offset, task.size), tally)

    def _write(self, task: Task, tally: Tally) -> None:
        """Write, and read back: no other process writes there."""
        source = pattern(task.lent.key + task.size, task.offset, task.size)
        if _settle(task, task.lent.buffer.write_from(source, task.offset, task.size), tally):
            target = self._targets[0][: task.size]
            if _settle(task, task.lent.buffer.read_into(target, task.offset, task.size), tally):
                _compare(task, target, source, tally)


def _settle(task: Task, future: Any, tally: Tally) -> bool:
    """Record the outcome; returns whether the transfer was done."""
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
    """A mover in a worker."""

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
