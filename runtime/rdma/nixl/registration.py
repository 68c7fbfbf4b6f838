"""What of this process's memory is registered with NIXL: once each, however many want it. For its thread alone."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.memory.local import CPU, LocalMemory
from meshbook.runtime.rdma.backends import Unsuitable
from meshbook.runtime.rdma.nixl.agent import MemoryRange, NixlAgent, NixlError

STAGED = 256 << 10  # bytes up to which data goes by way of a place: to register memory takes longer than to copy that
_HEAD = 64  # bytes before what is staged


@dataclass(slots=True)
class _Registration:
    number: int
    holders: int = 0


class RegisteredMemory:
    """Registered memory of our own, for a word, and for data that is staged. It is used by one transfer at a time."""

    def __init__(self) -> None:
        self._memory: Any = (ctypes.c_ubyte * (_HEAD + STAGED))()
        self.whole = MemoryRange(ctypes.addressof(self._memory), _HEAD + STAGED)

    @property
    def word(self) -> int:
        """What was read into the stretch `for_word`."""
        return int(ctypes.c_uint64.from_buffer(self._memory).value)

    @property
    def for_word(self) -> MemoryRange:
        return MemoryRange(self.whole.address, ctypes.sizeof(ctypes.c_uint64))

    def for_data(self, size: int) -> MemoryRange:
        return MemoryRange(self.whole.address + _HEAD, size)


class RegistrationTable:
    """Counts who holds which stretch. Stretches that overlap are different ones."""

    def __init__(self, agent: NixlAgent) -> None:
        self._agent = agent
        self._found: dict[MemoryRange, _Registration] = {}
        self._numbers = itertools.count(1)
        self._places: list[RegisteredMemory] = []  # not in use

    def hold(self, stretch: MemoryRange) -> int:
        """Have it registered until `let_go`; the number of the registration, which no other one has. May be Failed."""
        found = self._found.get(stretch)
        if found is None:
            self._agent.register(stretch)
            found = self._found[stretch] = _Registration(next(self._numbers))
        found.holders += 1
        return found.number

    def let_go(self, stretch: MemoryRange) -> None:
        found = self._found[stretch]
        found.holders -= 1
        if not found.holders:
            del self._found[stretch]
            with contextlib.suppress(NixlError):  # then it is registered no more already
                self._agent.deregister(stretch)

    def hold_for_good(self, stretch: MemoryRange) -> None:
        """Have it registered as long as the process lives: asked for again, nothing happens."""
        if stretch not in self._found:
            self.hold(stretch)

    @contextlib.contextmanager
    def place(self) -> Iterator[RegisteredMemory]:
        """A place of one's own. Unsuitable where no memory can be registered."""
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
        """Whether it is reached directly: registered meanwhile. Else it is staged, since it is small, or cannot be
        registered, as pages that may only be read. Unsuitable where a GPU's cannot.

        It is not kept registered for the next time: where memory is freed, and other memory comes to be at its address,
        a NIC would go on writing to what was there before. What is lent from here is registered already.
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
