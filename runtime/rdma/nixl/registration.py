"""The registrations of this process's memory with NIXL: one per range, counted. For the NIXL thread only."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.memory.local_memory import CPU, LocalMemory
from meshbook.runtime.rdma.backends import Unsuitable
from meshbook.runtime.rdma.nixl.nixl_agent import MemoryRange, NixlAgent, NixlError

STAGED = 256 << 10  # up to this many bytes, data is staged: registering memory takes longer than copying them
_HEAD = 64  # bytes before the staged data


@dataclass(slots=True)
class _Registration:
    number: int
    holders: int = 0


class RegisteredMemory:
    """Registered memory of this backend, for a lease's word and for staged data. One transfer uses it at a time."""

    def __init__(self) -> None:
        self._memory: Any = (ctypes.c_ubyte * (_HEAD + STAGED))()
        self.whole = MemoryRange(ctypes.addressof(self._memory), _HEAD + STAGED)

    @property
    def word(self) -> int:
        """The word that was read into `for_word`."""
        return int(ctypes.c_uint64.from_buffer(self._memory).value)

    @property
    def for_word(self) -> MemoryRange:
        return MemoryRange(self.whole.address, ctypes.sizeof(ctypes.c_uint64))

    def for_data(self, size: int) -> MemoryRange:
        return MemoryRange(self.whole.address + _HEAD, size)


class RegistrationTable:
    """Counts the holders of each registered range. Ranges that overlap are registered separately."""

    def __init__(self, agent: NixlAgent) -> None:
        self._agent = agent
        self._found: dict[MemoryRange, _Registration] = {}
        self._numbers = itertools.count(1)
        self._places: list[RegisteredMemory] = []  # not in use

    def hold(self, memory: MemoryRange) -> int:
        """Register this range until `let_go`, and return the unique number of the registration. May raise NixlError."""
        found = self._found.get(memory)
        if found is None:
            self._agent.register(memory)
            found = self._found[memory] = _Registration(next(self._numbers))
        found.holders += 1
        return found.number

    def let_go(self, memory: MemoryRange) -> None:
        found = self._found[memory]
        found.holders -= 1
        if not found.holders:
            del self._found[memory]
            with contextlib.suppress(NixlError):  # then it is not registered any more
                self._agent.deregister(memory)

    def hold_for_good(self, memory: MemoryRange) -> None:
        """Register this range until the process ends. Idempotent."""
        if memory not in self._found:
            self.hold(memory)

    @contextlib.contextmanager
    def place(self) -> Iterator[RegisteredMemory]:
        """Yield registered memory for one transfer. Raises Unsuitable if no memory can be registered."""
        place = self._places.pop() if self._places else self._make_place()
        try:
            yield place
        finally:
            self._places.append(place)

    def _make_place(self) -> RegisteredMemory:
        place = RegisteredMemory()
        try:
            self.hold(place.whole)
        except NixlError as error:
            raise Unsuitable(f"NIXL could not register memory here: {error}") from error
        return place

    @contextlib.contextmanager
    def reachable(self, local: LocalMemory) -> Iterator[bool]:
        """Register this memory for a `with` block; yield False if it has to be staged instead.

        Memory is staged if it is small or cannot be registered, such as read-only pages. Raises Unsuitable if memory of
        a GPU cannot be registered.

        The registration is not kept: if memory is freed and its address reused, a NIC would still write to the old
        pages. Memory that this process lends is registered already.
        """
        whole = MemoryRange.of(local)
        if local.device == CPU and local.size <= STAGED and whole not in self._found:
            yield False
            return
        try:
            self.hold(whole)
        except NixlError as error:
            if local.device != CPU:
                raise Unsuitable(f"NIXL could not register memory of {local.device}: {error}") from error
            yield False
            return
        try:
            yield True
        finally:
            self.let_go(whole)
