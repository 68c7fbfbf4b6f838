"""NIXL's agent of this process: the only file that uses NIXL. Only workers make one, on demand: this imports NIXL.

Not thread-safe: one thread makes all calls (`scheduler`). Observed with version 1.5:
- Without a progress thread, an owner has to call NIXL for its peers to be served. `pthrDelay` is how long that thread
  sleeps if nothing wakes it. NIXL's Python class sets 0, which spins a core, so this file calls the bindings directly.
- A request continues after it is released, and after its peer is forgotten: memory must stay until the state of the
  request says that it is over.
- A peer that is forgotten and met again has a new connection; the descriptors of the old one stay open.
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

from meshbook.runtime import devices
from meshbook.runtime.memory.local_memory import CPU, LocalMemory

PACKAGES = ("nixl", "nixl_cu13", "nixl_cu12")  # the first one selects one of the others by torch's CUDA version
_BACKEND = "UCX"
_WAKE = 10_000  # microseconds: 0.8 % of a core when idle, and replies are as fast as with 1,000
_SETTINGS = {
    "UCX_MEM_EVENTS": "n",  # otherwise it searches all loaded libraries: 0.4 s
    "UCX_DEBUG_SIGNO": "0",  # otherwise it handles SIGHUP
    "UCX_VFS_ENABLE": "n",  # otherwise it starts a thread for a file system of its own
    # With TCP it would listen on every address of this host and serve this process's memory to any client; with shared
    # memory it would depend on the size of /dev/shm.
    "UCX_TLS": "^tcp,sm",
    # This package reports failures; the libraries would write lines into the output of cells.
    "UCX_LOG_LEVEL": "fatal",
    "NIXL_LOG_LEVEL": "FATAL",
}


class NixlError(Exception):
    """An error of NIXL, with its text."""


class MemoryRange(NamedTuple):
    """Memory of a process, in NIXL's form."""

    address: int
    size: int
    gpu: int | None = None  # its number in that process; None: memory of the CPU

    @classmethod
    def of(cls, local: LocalMemory) -> MemoryRange:
        gpu = None if local.device == CPU else int(local.device.partition(":")[2] or 0)
        return cls(local.address, local.size, gpu)


def is_installed() -> bool:
    """Return whether NIXL can be imported, without importing it."""
    return any(importlib.util.find_spec(name) is not None for name in PACKAGES)


def has_nic() -> bool:
    """Return whether this host has a device for verbs."""
    root = Path("/sys/class/infiniband")
    return root.is_dir() and any(root.iterdir())


def is_guarded() -> bool:
    """Return whether only NICs move data here. They refuse withdrawn keys; users may configure other transports."""
    return has_nic() and "UCX_TLS" not in os.environ


def is_loaded() -> bool:
    """Return whether NIXL was imported here: it may crash in the C library's exit handlers, so these must not run."""
    return any(f"{name}._bindings" in sys.modules for name in PACKAGES)


class NixlAgent:
    """Registers memory of this process, and moves data between it and that of peers. Its methods raise NixlError."""

    def __init__(self, name: str) -> None:
        """`name` identifies this agent to peers. No other process may have or have had it."""
        self.name = name
        with _quietly():
            self._bindings = _load()
            config = self._bindings.nixlAgentConfig()
            config.useProgThread, config.pthrDelay = True, _WAKE
            with _translated():
                self._agent = self._bindings.nixlAgent(name, config)
                self._backend = self._agent.createBackend(_BACKEND, {})

    def register(self, memory: MemoryRange) -> None:
        """Let NICs access this memory."""
        _make_current(memory)
        with _translated():
            self._agent.registerMem(self._listed(memory), [self._backend])

    def deregister(self, memory: MemoryRange) -> None:
        _make_current(memory)
        with _translated():
            self._agent.deregisterMem(self._listed(memory), [self._backend])

    def describe(self, memory: MemoryRange) -> bytes:
        """Return the description that a peer needs to reach this agent and this registered memory."""
        with _translated():
            return bytes(self._agent.getLocalPartialMD(self._listed(memory), True, [self._backend]))

    def meet(self, description: bytes) -> None:
        """Load the description from a peer. Idempotent."""
        with _translated():
            self._agent.loadRemoteMD(description)

    def forget(self, peer: str) -> None:
        """Drop the connection to a peer and all its descriptions. No request to or from it may be under way."""
        with contextlib.suppress(Exception):  # it is unknown
            self._agent.invalidateRemoteMD(peer)

    def begin(self, peer: str, here: MemoryRange, there: MemoryRange, *, is_write: bool) -> int:
        """Start to move data between two ranges of one size. Returns the number of the request, for `release`."""
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
        """Return whether all bytes have arrived. Raises NixlError if the request has failed."""
        with _translated():
            state = self._agent.getXferStatus(request)
        if state not in (self._bindings.NIXL_SUCCESS, self._bindings.NIXL_IN_PROG):
            raise NixlError(str(state))
        return bool(state == self._bindings.NIXL_SUCCESS)

    def release(self, request: int) -> None:
        """Release a finished request, once."""
        with contextlib.suppress(Exception):  # it is over in any case
            self._agent.releaseXferReq(request)

    def _listed(self, memory: MemoryRange) -> Any:
        return self._bindings.nixlRegDList(self._kind(memory), [(memory.address, memory.size, memory.gpu or 0, "")])

    def _pieces(self, memory: MemoryRange) -> Any:
        return self._bindings.nixlXferDList(self._kind(memory), [(memory.address, memory.size, memory.gpu or 0)])

    def _kind(self, memory: MemoryRange) -> Any:
        return self._bindings.DRAM_SEG if memory.gpu is None else self._bindings.VRAM_SEG


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
    """Set default settings for NIXL's start that the user has not set, and restore Python's logging afterwards."""
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
    except Exception as error:  # NIXL's exception classes differ between versions
        raise NixlError(f"{error}") from error


def _make_current(memory: MemoryRange) -> None:
    """Set the thread's current GPU: CUDA uses it, and so does UCX when it registers or copies memory."""
    if memory.gpu is not None:
        devices.use(memory.gpu)
