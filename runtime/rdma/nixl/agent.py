"""NIXL's agent of this process: the one file that knows NIXL. It imports it, so only workers may make one, and late.

Not safe from several threads: one alone calls it (`turns`). Found out by trying, with version 1.5:

- Without a progress thread of its own an owner has to call NIXL for others to be served. Its `pthrDelay` is how long
  that sleeps if nothing wakes it; NIXL's Python class sets 0, which spins a core. So the bindings are called directly.
- What was asked for goes on after its request was released, and after the peer was forgotten: memory must stay until
  the state of its request says that it is over.
- A peer that is forgotten and met again has a new connection, and the descriptors of the old one stay open.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from meshbook.runtime.memory.local import CPU, LocalMemory

PACKAGES = ("nixl", "nixl_cu13", "nixl_cu12")  # the first one chooses between the others by torch's CUDA
_BACKEND = "UCX"
_WAKE = 10_000  # microseconds: 0.8 % of a core when idle, and it answers as fast as with 1,000
_SETTINGS = {
    "UCX_MEM_EVENTS": "n",  # it would look through all libraries that are loaded: 0.4 s
    "UCX_DEBUG_SIGNO": "0",  # it would take SIGHUP
    "UCX_VFS_ENABLE": "n",  # it would have a thread for a file system of its own
    # By TCP it would listen at each address of this host, and serve our memory to whoever connects; by shared memory
    # it would depend on the size of /dev/shm.
    "UCX_TLS": "^tcp,sm",
    # What fails is told by us: they would write lines into the output of cells.
    "UCX_LOG_LEVEL": "fatal",
    "NIXL_LOG_LEVEL": "FATAL",
}


class NixlError(Exception):
    """NIXL said no: the text is what it said."""


class MemoryRange(NamedTuple):
    """Memory of a process, as NIXL wants it."""

    address: int
    size: int
    gpu: int | None = None  # its number in that process; None: memory of the CPU

    @classmethod
    def of(cls, local: LocalMemory) -> MemoryRange:
        gpu = None if local.device == CPU else int(local.device.partition(":")[2] or 0)
        return cls(local.address, local.size, gpu)


def is_installed() -> bool:
    """Whether it can be imported; it is not imported for that."""
    return any(importlib.util.find_spec(name) is not None for name in PACKAGES)


def has_nic() -> bool:
    """Whether this host has a device for verbs."""
    root = Path("/sys/class/infiniband")
    return root.is_dir() and any(root.iterdir())


def is_guarded() -> bool:
    """Whether NICs alone move data here: they refuse keys that were withdrawn. Users may name other transports."""
    return has_nic() and "UCX_TLS" not in os.environ


def is_loaded() -> bool:
    """Whether it was imported here: then the C library's exit handlers must not run, where it may crash."""
    return any(f"{name}._bindings" in sys.modules for name in PACKAGES)


class NixlAgent:
    """Registers memory of this process, and moves data between it and that of peers. Everything raises Failed."""

    def __init__(self, name: str) -> None:
        """Peers know it by this name, which no other process has or had."""
        self.name = name
        with _quietly():
            self._bindings = _load()
            config = self._bindings.nixlAgentConfig()
            config.useProgThread, config.pthrDelay = True, _WAKE
            with _translated():
                self._agent = self._bindings.nixlAgent(name, config)
                self._backend = self._agent.createBackend(_BACKEND, {})

    def register(self, stretch: MemoryRange) -> None:
        """Let NICs reach this memory."""
        _make_current(stretch)
        with _translated():
            self._agent.registerMem(self._listed(stretch), [self._backend])

    def deregister(self, stretch: MemoryRange) -> None:
        _make_current(stretch)
        with _translated():
            self._agent.deregisterMem(self._listed(stretch), [self._backend])

    def describe(self, stretch: MemoryRange) -> bytes:
        """What a peer needs to reach registered memory, and this agent."""
        with _translated():
            return bytes(self._agent.getLocalPartialMD(self._listed(stretch), True, [self._backend]))

    def meet(self, description: bytes) -> None:
        """Take in what a peer has described; again where it is known does nothing."""
        with _translated():
            self._agent.loadRemoteMD(description)

    def forget(self, peer: str) -> None:
        """Drop all that this peer has described, and the connection. Nothing may be under way from or to it."""
        with contextlib.suppress(Exception):  # it is not known
            self._agent.invalidateRemoteMD(peer)

    def begin(self, peer: str, here: MemoryRange, there: MemoryRange, *, is_write: bool) -> int:
        """Begin to move data between two stretches of one size; the number of the request, to be released."""
        operation = self._bindings.NIXL_WRITE if is_write else self._bindings.NIXL_READ
        _make_current(here)
        with _translated():
            sides = self._pieces(here), self._pieces(there)
            request = int(self._agent.createXferReq(operation, *sides, peer, "", [self._backend]))
        try:
            with _translated():
                self._agent.postXferReq(request)
        except NixlError:
            self.release(request)
            raise
        return request

    def is_done(self, request: int) -> bool:
        """Whether all bytes are there. Failed: they will not come any more."""
        with _translated():
            state = self._agent.getXferStatus(request)
        if state not in (self._bindings.NIXL_SUCCESS, self._bindings.NIXL_IN_PROG):
            raise NixlError(str(state))
        return bool(state == self._bindings.NIXL_SUCCESS)

    def release(self, request: int) -> None:
        """Once for each request, when it is over."""
        with contextlib.suppress(Exception):  # it is over in any case
            self._agent.releaseXferReq(request)

    def _listed(self, stretch: MemoryRange) -> Any:
        return self._bindings.nixlRegDList(self._kind(stretch), [(stretch.address, stretch.size, stretch.gpu or 0, "")])

    def _pieces(self, stretch: MemoryRange) -> Any:
        return self._bindings.nixlXferDList(self._kind(stretch), [(stretch.address, stretch.size, stretch.gpu or 0)])

    def _kind(self, stretch: MemoryRange) -> Any:
        return self._bindings.DRAM_SEG if stretch.gpu is None else self._bindings.VRAM_SEG


def _load() -> Any:
    reasons = []
    for name in PACKAGES:
        try:
            return importlib.import_module(f"{name}._bindings")
        except ImportError as error:
            reasons.append(str(error))
    raise NixlError("; ".join(reasons))


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """With settings for its start that the user has not made; and what it changes of Python's logging is put back."""
    made = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    before = logging.raiseExceptions
    os.environ.update(made)
    try:
        yield
    finally:
        logging.raiseExceptions = before
        for name in made:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # its classes differ between versions
        raise NixlError(f"{error}") from error


def _make_current(stretch: MemoryRange) -> None:
    """CUDA looks at a thread's current GPU, and so does UCX when it registers memory or copies it."""
    if stretch.gpu is not None:
        sys.modules["torch"].cuda.set_device(stretch.gpu)
