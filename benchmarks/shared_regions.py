"""Owners of memory and movers of it, for `chaos_transfers.py`: every received byte is compared.

A region of memory has a key, which determines its bytes. A dropped region is overwritten at once with a byte that no
region contains. So a read that comes too late without an error is detected; so is a late write, since the memory must
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
SHARED = (64 * KIB, MIB, 4 * MIB)  # bytes of the regions that all may read
SLOT = 2 * MIB  # bytes of a region that one other process may write to
LARGEST = max(*SHARED, SLOT)
GARBAGE = 0xEE
AT_A_TIME = 4  # concurrent reads of one process
RETIRED = 4  # dropped regions that are checked once more later
_SPREAD = MIB
_NOISE = np.random.default_rng(7).integers(0, GARBAGE, _SPREAD + LARGEST, np.uint8)


def pattern(key: int, offset: int, size: int) -> Any:
    """Return bytes of the region with this key, from the offset on."""
    begin = key * 4099 % _SPREAD + offset
    return _NOISE[begin : begin + size]


class SharedRegion(NamedTuple):
    """A region of memory of this owner."""

    owner: int
    key: int
    buffer: RDMABuffer


class OwnedRegions(NamedTuple):
    """The regions of an owner: those for all, and those for each other process alone."""

    shared: list[SharedRegion]
    slots: list[SharedRegion]


class RegionTransfer(NamedTuple):
    """One transfer, or two: written bytes are read back."""

    region: SharedRegion
    offset: int
    size: int
    is_write: bool


class Outcomes(NamedTuple):
    """The outcomes of some tasks."""

    counts: collections.Counter[str]
    gone: set[int]  # owners
    wrong: list[str]


class Owner:
    """The regions of memory of one process."""

    def __init__(self, number: int, movers: int) -> None:
        self._number = number
        self._keys = itertools.count(os.getpid() * 1000)
        self._memory: dict[int, Any] = {}
        self._retired: collections.deque[Any] = collections.deque()
        self._shared = [self._share(size) for size in SHARED]
        self._slots = [self._share(SLOT) for _ in range(movers)]

    def regions(self) -> OwnedRegions:
        return OwnedRegions(list(self._shared), list(self._slots))

    def renew(self, index: int, is_slot: bool) -> tuple[OwnedRegions, list[str]]:
        """Drop a region, and provide another one; returns the present regions, and the errors found."""
        kind = self._slots if is_slot else self._shared
        old, kind[index] = kind[index], self._share(kind[index].buffer.size())
        old.buffer.drop().get(30)
        memory = self._memory.pop(old.key)
        memory.fill(GARBAGE)
        self._retired.append(memory)
        return self.regions(), [] if len(self._retired) <= RETIRED else self._look_again(self._retired.popleft())

    def _share(self, size: int) -> SharedRegion:
        key = next(self._keys)
        memory = self._memory[key] = pattern(key, 0, size).copy()
        return SharedRegion(self._number, key, RDMABuffer(memory))

    def _look_again(self, memory: Any) -> list[str]:
        count = int(np.count_nonzero(memory != GARBAGE))
        return [f"{count} bytes of owner {self._number} were written after they had been dropped"] if count else []


class RegionTransfers:
    """Moves data, and checks all of it."""

    def __init__(self) -> None:
        self._targets = [np.zeros(LARGEST, np.uint8) for _ in range(AT_A_TIME)]

    def do(self, tasks: Sequence[RegionTransfer]) -> Outcomes:
        outcomes = Outcomes(collections.Counter(), set(), [])
        reads = [task for task in tasks if not task.is_write]
        for begin in range(0, len(reads), AT_A_TIME):
            self._read(reads[begin : begin + AT_A_TIME], outcomes)
        for task in tasks:
            if task.is_write:
                self._write(task, outcomes)
        return outcomes

    def _read(self, tasks: Sequence[RegionTransfer], outcomes: Outcomes) -> None:
        """Read these at the same time."""
        begun = []
        for task, memory in zip(tasks, self._targets, strict=False):
            target = memory[: task.size]
            target.fill(GARBAGE)
            begun.append((task, target, task.region.buffer.read_into(target, task.offset, task.size)))
        for task, target, future in begun:
            if _settle(task, future, outcomes):
                _compare(task, target, pattern(task.region.key, task.offset, task.size), outcomes)

    def _write(self, task: RegionTransfer, outcomes: Outcomes) -> None:
        """Write, and read back: no other process writes there."""
        source = pattern(task.region.key + task.size, task.offset, task.size)
        if _settle(task, task.region.buffer.write_from(source, task.offset, task.size), outcomes):
            target = self._targets[0][: task.size]
            if _settle(task, task.region.buffer.read_into(target, task.offset, task.size), outcomes):
                _compare(task, target, source, outcomes)


def _settle(task: RegionTransfer, future: Any, outcomes: Outcomes) -> bool:
    """Record the outcome; returns whether the transfer was done."""
    error = future.exception(60)
    if error is None:
        outcomes.counts["done"] += 1
    elif isinstance(error, BufferDropped):
        outcomes.counts["dropped"] += 1
    elif isinstance(error, OwnerGone):
        outcomes.counts["gone"] += 1
        outcomes.gone.add(task.region.owner)
    else:
        outcomes.wrong.append(f"{task}: {error!r}")
    return error is None


def _compare(task: RegionTransfer, found: Any, due: Any, outcomes: Outcomes) -> None:
    if not np.array_equal(found, due):
        bad = np.flatnonzero(found != due)
        garbage = int(np.count_nonzero(found == GARBAGE))
        outcomes.wrong.append(f"{task}: {len(bad)} wrong bytes from {bad[0]} on, {garbage} of what was dropped")


class OwnerActor(Actor):
    """An owner in a worker."""

    def __init__(self, number: int, movers: int) -> None:
        self._owner = Owner(number, movers)

    @endpoint
    def regions(self) -> OwnedRegions:
        return self._owner.regions()

    @endpoint
    def renew(self, index: int, is_slot: bool) -> tuple[OwnedRegions, list[str]]:
        return self._owner.renew(index, is_slot)


class MoverActor(Actor):
    """A mover in a worker."""

    def __init__(self) -> None:
        self._transfers = RegionTransfers()

    @endpoint
    def do(self, tasks: Sequence[RegionTransfer]) -> Outcomes:
        return self._transfers.do(tasks)

    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def pid(self) -> int:
        return os.getpid()
