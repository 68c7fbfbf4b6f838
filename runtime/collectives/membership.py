"""Membership of a process in the process group of its mesh: leaving the old group, and joining the next.

The rendezvous uses a store that the first rank opens for it alone, at a port that the system picks. So no fixed port
has to be free, and no data of an earlier group can be mistaken for the present one. The store ends with the process of
the first rank; but then the group is over in any case.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil

from meshbook.runtime import devices
from meshbook.runtime.collectives.abort import abort_groups, stuck_threads, wait_freed
from meshbook.runtime.collectives.stores import open_store
from meshbook.runtime.resources import free_port


@dataclass(frozen=True, slots=True)
class LeftGroups:
    """The outcome of leaving the groups: the aborted groups, and a port that is free on this host.

    `stuck`: the function in which a thread still waits, if one does.
    """

    aborted: tuple[str, ...]
    free_port: int
    stuck: str = ""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The parameters of a process group: address of the rendezvous, size, backend. Seconds; None: torch's default."""

    host: str
    port: int
    world_size: int
    backend: str
    timeout: float | None


class GroupMembership:
    """The membership of this process; a process has one default group."""

    def __init__(self) -> None:
        self._store: Any = None  # the store that this process has opened, until the group holds it

    def leave(self, size: int | None = None) -> LeftGroups:
        """Abort all groups of this process; with a size, only if the default group has so many ranks."""
        dist = sys.modules.get("torch.distributed")  # without it there is no group, and importing it takes a second
        present = dist.get_world_size() if dist is not None and dist.is_initialized() else None
        if size not in (None, present):
            return LeftGroups((), free_port())
        threads = stuck_threads()
        aborted = abort_groups()
        stuck = wait_freed(threads)
        if dist is not None and dist.is_initialized():
            stuck = stuck or "_abort_process_group"
        return LeftGroups(tuple(aborted), free_port(), stuck)

    def open_store(self, is_alone: bool) -> tuple[str, int]:
        """Open the store for a rendezvous; return its host and port. `is_alone`: all ranks are on this host."""
        host = "127.0.0.1" if is_alone else _name_of_host()
        self._store = open_store(host)
        return host, int(self._store.port)

    def join(self, plan: GroupPlan, rank: int, local_rank: int) -> None:
        """Join the group as this rank; return once all ranks have joined. Raises what torch raises."""
        import torch
        import torch.distributed as dist

        given: dict[str, Any] = {} if plan.timeout is None else {"timeout": timedelta(seconds=plan.timeout)}
        store = self._store if rank == 0 else dist.TCPStore(plan.host, plan.port, plan.world_size, is_master=False)
        if "nccl" in plan.backend:
            if not devices.count():
                raise RuntimeError("NCCL needs a GPU for each rank, but this host has none; use backend='gloo'")
            devices.use(number := devices.number_of(local_rank))  # for this thread only
            given["device_id"] = torch.device("cuda", number)  # so that NCCL connects now, and raises early
        try:
            dist.init_process_group(plan.backend, store=store, rank=rank, world_size=plan.world_size, **given)
        finally:
            self._store = None


# Read by torch when it makes an NCCL group. Its watchdog ends processes: those whose collective failed or timed out,
# and those whose watchdog thread is stuck. A rank must keep its variables when another one dies or does not arrive.
WATCHDOG_OFF = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_FR_BUFFER_SIZE": "2000",  # the flight recorder, on: it knows the collectives that have not ended
}


def disable_watchdog() -> None:
    """Let NCCL's watchdog end no process; variables that the user has set take precedence."""
    for name, value in WATCHDOG_OFF.items():
        os.environ.setdefault(name, value)


def set_default_timeout(seconds: float) -> None:
    """Set the time limit of groups that are made without a `timeout`, of all backends. Torch is imported already."""
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is not None:  # a build may lack it
        c10d.default_pg_timeout = c10d.default_pg_nccl_timeout = timedelta(seconds=seconds)


def has_gpu(local_rank: int) -> bool:
    """Return whether this process, the n-th of its host, has a GPU of its own."""
    import torch  # noqa: F401  # `devices` looks only if it is imported

    return devices.count() > local_rank


def _name_of_host() -> str:
    """Return this host's address for other hosts: that of the interface for collectives, else its name."""
    if os.environ.get("GROUP_RANK") == "0" and (address := os.environ.get("MASTER_ADDR")):
        return address
    of_interface = psutil.net_if_addrs().get(os.environ.get("GLOO_SOCKET_IFNAME", ""), [])
    ours = [each.address for each in of_interface if each.family == socket.AF_INET]
    return ours[0] if ours else socket.gethostname()
