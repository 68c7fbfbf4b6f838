"""Report which hardware moves data between hosts, under Monarch's names, and warn about slow transfers.

Within one host, data always moves through process memory; `RDMABuffer.explain()` reports the backend of one buffer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from meshbook.runtime.config import current_settings
from meshbook.runtime.rdma.backends import BufferHandle, TransferBackend
from meshbook.runtime.rdma.nixl.nixl_agent import is_installed

Backend = Literal["ibverbs", "tcp", "none"]
BY_TCP = frozenset({"host agent", "message"})  # the backends that need no NIC
NICS = Path("/sys/class/infiniband")
# Keys of `monarch.config`; `is_tcp_allowed` and `why_no_ibverbs` hold the defaults.
_DISABLE, _FALLBACK = "rdma_disable_ibverbs", "rdma_allow_tcp_fallback"


class RDMAReadTransferWarning(Warning):
    """A read uses a slow backend because of the memory that it reads into."""


class RDMAWriteTransferWarning(Warning):
    """A write uses a slow backend because of the memory that it reads from."""


class RDMATcpFallbackWarning(Warning):
    """Data moves to another host over TCP because no RDMA NIC can be used."""


def get_rdma_backend() -> Backend:
    """Return how data moves between hosts: "ibverbs" (RDMA NIC), "tcp" (no NIC) or "none" (TCP is forbidden).

    `monarch.config.configure(rdma_disable_ibverbs=True)` disables the NIC, and `rdma_allow_tcp_fallback=False` forbids
    TCP. Transfers within a host work in any case.
    """
    if is_ibverbs_available():
        return "ibverbs"
    return "tcp" if is_tcp_allowed() else "none"


def is_ibverbs_available() -> bool:
    """Return whether this process uses an RDMA NIC.

    The host must have one, NIXL (`meshbook[rdma]`) must be installed, and no setting may forbid it.
    """
    return not why_no_ibverbs()


def is_rdma_available() -> bool:
    """Deprecated name of `is_ibverbs_available`."""
    warnings.warn(
        "is_rdma_available() is deprecated; use is_ibverbs_available() for an RDMA NIC, or get_rdma_backend() for the "
        "backend in use",
        DeprecationWarning,
        stacklevel=2,
    )
    return is_ibverbs_available()


def why_no_ibverbs(nics: Path = NICS) -> str:
    """Return why this process uses no RDMA NIC, in a few words; empty if it can use one."""
    if current_settings().extra.get(_DISABLE, False):
        return f"{_DISABLE} is set"
    if not (nics.is_dir() and any(nics.iterdir())):
        return "this host has no RDMA NIC"
    if not is_installed():
        return "NIXL is not installed: pip install meshbook[rdma]"
    return ""


def is_tcp_allowed() -> bool:
    """Return whether data may move to other hosts without a NIC."""
    return bool(current_settings().extra.get(_FALLBACK, True))


class Fallback:
    """Refuses or warns about TCP transfers to other hosts. `own_system` returns the system of this host."""

    def __init__(self, own_system: Callable[[], str]) -> None:
        self._own_system = own_system
        # The warnings that were not given yet. `pop` is atomic, so that of several threads only the first one warns.
        self._due = dict.fromkeys((RDMATcpFallbackWarning, RDMAReadTransferWarning, RDMAWriteTransferWarning), True)

    def forbid(self, backend: TransferBackend, handle: BufferHandle) -> str:
        """Return why a backend that reaches this buffer may not be used; empty if it may."""
        if not self._is_by_tcp(backend.name, handle) or is_tcp_allowed():
            return ""
        return f"{_FALLBACK} is False, and {why_no_ibverbs() or 'the host of its owner uses no RDMA NIC'}"

    def note(self, backend: str, handle: BufferHandle) -> None:
        """Warn once per process when a transfer used TCP."""
        if self._is_by_tcp(backend, handle) and self._due.pop(RDMATcpFallbackWarning, False):
            owner = f"{handle.actor} on {handle.owner.node}"
            warnings.warn(
                f"data from and to {owner} moves over TCP: {why_no_ibverbs() or 'its host uses no RDMA NIC'}. "
                f"configure({_FALLBACK}=False) makes this an error; buffer.explain() shows the backend",
                RDMATcpFallbackWarning,
                stacklevel=2,
            )

    def note_gpu(self, backend: str, handle: BufferHandle, *, is_write: bool) -> None:
        """Warn when a transfer between a GPU here and a GPU buffer used messages: once for reads, once for writes."""
        warning = RDMAWriteTransferWarning if is_write else RDMAReadTransferWarning
        if backend == "message" and handle.is_on_gpu and self._due.pop(warning, False):
            owner = f"{handle.actor} on {handle.owner.node}"
            warnings.warn(
                f"data between a GPU here and a GPU of {owner} moves through CPU memory and by messages, which the "
                "owner's process must answer; buffer.explain() shows why no other backend is used",
                warning,
                stacklevel=2,
            )

    def _is_by_tcp(self, backend: str, handle: BufferHandle) -> bool:
        return backend in BY_TCP and handle.process.system != self._own_system()
