"""Which hardware moves data between hosts, in the words that Monarch has for it, and when a user is warned about it.

On one host data goes by the memory of processes, whatever is said here: `RDMABuffer.explain()` says how that of one
buffer goes.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from meshbook.runtime.config import settings_in_force
from meshbook.runtime.rdma.backends import TransferBackend
from meshbook.runtime.rdma.handle import BufferHandle
from meshbook.runtime.rdma.nixl.agent import is_installed

Backend = Literal["ibverbs", "tcp", "none"]
BY_TCP = frozenset({"host agent", "message"})  # the ways that need no NIC
NICS = Path("/sys/class/infiniband")
# Keys of `monarch.config`, and what holds where they were not set.
_DISABLE, _FALLBACK = "rdma_disable_ibverbs", "rdma_allow_tcp_fallback"


class RDMAReadTransferWarning(Warning):
    """A read goes a slower way than it could, for a reason in the memory that it is read into."""


class RDMAWriteTransferWarning(Warning):
    """A write goes a slower way than it could, for a reason in the memory that it comes from."""


class RDMATcpFallbackWarning(Warning):
    """Data goes to another host by TCP, since there is no RDMA NIC that could be used."""


def get_rdma_backend() -> Backend:
    """How data goes between hosts: "ibverbs" by an RDMA NIC, "tcp" without one, "none" where that is not allowed.

    `monarch.config.configure(rdma_disable_ibverbs=True)` does without the NIC, and `rdma_allow_tcp_fallback=False`
    forbids TCP. Within a host data moves in any case.
    """
    if is_ibverbs_available():
        return "ibverbs"
    return "tcp" if is_tcp_allowed() else "none"


def is_ibverbs_available() -> bool:
    """Whether an RDMA NIC is used from here: there is one, NIXL is installed (`meshbook[rdma]`), and it is allowed."""
    return not why_no_ibverbs()


def is_rdma_available() -> bool:
    """The older name of `is_ibverbs_available`."""
    warnings.warn(
        "is_rdma_available() is deprecated, since there is more than one backend: "
        "is_ibverbs_available() asks for a NIC, get_rdma_backend() for what is used",
        DeprecationWarning,
        stacklevel=2,
    )
    return is_ibverbs_available()


def why_no_ibverbs(nics: Path = NICS) -> str:
    """Why no RDMA NIC is used from here, in a few words; empty where one can be."""
    if settings_in_force().extra.get(_DISABLE, False):
        return f"{_DISABLE} is set"
    if not (nics.is_dir() and any(nics.iterdir())):
        return "this host has no RDMA NIC"
    if not is_installed():
        return "NIXL is not installed: pip install meshbook[rdma]"
    return ""


def is_tcp_allowed() -> bool:
    """Whether data may go to other hosts without a NIC."""
    return bool(settings_in_force().extra.get(_FALLBACK, True))


class Fallback:
    """What is forbidden, and what is said, where data goes to other hosts by TCP. `own_system` is that of this host."""

    def __init__(self, own_system: Callable[[], str]) -> None:
        self._own_system = own_system
        self._first = threading.Lock()  # taken once, by whoever is first to warn; as the next two
        self._first_read, self._first_write = threading.Lock(), threading.Lock()

    def forbid(self, way: TransferBackend, handle: BufferHandle) -> str:
        """Why a way that leads to this buffer is not taken; empty where it is."""
        if not self._is_by_tcp(way.name, handle) or is_tcp_allowed():
            return ""
        return f"{_FALLBACK} is False, and {why_no_ibverbs() or 'the host of its owner uses no RDMA NIC'}"

    def note(self, way: str, handle: BufferHandle) -> None:
        """Data has gone this way: warn, once in a process, where it was by TCP."""
        if self._is_by_tcp(way, handle) and self._first.acquire(blocking=False):
            owner = f"{handle.actor} on {handle.owner.node}"
            warnings.warn(
                f"data from and to {owner} goes by TCP, since {why_no_ibverbs() or 'its host uses no RDMA NIC'}. "
                f"configure({_FALLBACK}=False) makes this an error; buffer.explain() says which way is taken",
                RDMATcpFallbackWarning,
                stacklevel=2,
            )

    def note_gpu(self, way: str, handle: BufferHandle, *, is_write: bool) -> None:
        """Data has gone this way between memory of a GPU here and this buffer: warn where it went from GPU to GPU by
        messages, once for reads and once for writes."""
        first = self._first_write if is_write else self._first_read
        if way == "message" and handle.is_on_gpu and first.acquire(blocking=False):
            owner = f"{handle.actor} on {handle.owner.node}"
            warnings.warn(
                f"data between memory of a GPU here and that of {owner} goes through memory of both CPUs, and by "
                f"messages, for which the owner has to be awake; buffer.explain() says why no other way leads there",
                RDMAWriteTransferWarning if is_write else RDMAReadTransferWarning,
                stacklevel=2,
            )

    def _is_by_tcp(self, way: str, handle: BufferHandle) -> bool:
        return way in BY_TCP and handle.process.system != self._own_system()
