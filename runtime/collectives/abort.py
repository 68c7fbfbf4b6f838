"""Freeing the threads of this process that are stuck in a collective, in a rendezvous or in a store.

They wait in C++, where neither a signal nor an exception reaches them. What does: NCCL's own abort, and for gloo and
for stores the end of their connections (`sockets.py`). The groups are gone afterwards, here; peers find the connections
ended, so whatever they wait for in the same groups fails, too.
"""

from __future__ import annotations

import socket
import sys
import threading
from types import FrameType
from typing import Any

from meshbook.runtime.clock import monotonic, sleep
from meshbook.runtime.collectives.frames import CALLED
from meshbook.runtime.collectives.sockets import connections_to, cut, gloo_connections

# Who waits for a store that does not listen tries again about once a second.
PATIENCE_S = 2.5
PAUSE_S = 0.02  # between looks at the stacks of other threads: nothing tells when one has left C++
FREEING_S = 1.0


def abort_groups() -> list[str]:
    """Free every thread that is stuck in torch.distributed, and take all process groups of this process apart.

    Call it on another thread than a stuck one. That gets a RuntimeError: within milliseconds, or in about a second
    where it waits for a store that nobody has opened. Afterwards torch says that the default process group has not been
    initialized, until it is again; groups that were made of some of the ranks are gone as well.

    Returns what was aborted, in words; nothing where there was nothing.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:  # nobody has used it; importing it would take a second
        return []
    stores = _store_ports(c10d)
    aborted = [_describe(c10d, group) for group in c10d._world.pg_names]
    freed = cut(gloo_connections())
    _forget_groups(c10d)
    freed += cut(connections_to(stores))
    while (awaited := _awaited_store()) is not None and _answer(awaited):
        freed += 1
    return aborted or ["a process group that was being made"] * bool(freed)


def stuck_threads() -> dict[int, FrameType]:
    """The threads, but this one, that are in a collective or making a group: where, as the innermost such frame."""
    found: dict[int, FrameType] = {}
    for ident, frame in _threads().items():
        inner: FrameType | None = frame
        while inner is not None and not inner.f_code.co_filename.endswith(CALLED):
            inner = inner.f_back
        if inner is not None:
            found[ident] = inner
    return found


def wait_freed(stuck: dict[int, FrameType], patience: float = FREEING_S) -> str:
    """Wait until these threads have left, as they do within milliseconds; where one of them is that has not."""
    deadline = monotonic() + patience
    while left := [frame for ident, frame in stuck_threads().items() if stuck.get(ident) is frame]:
        if monotonic() > deadline:
            return left[0].f_code.co_name
        del left  # frames hold the groups
        sleep(PAUSE_S)
    return ""


def _describe(c10d: Any, group: Any) -> str:
    """`gloo group of 4 ranks`"""
    backend = c10d._world.pg_map[group][0]
    return f"{backend} group of {group.size()} ranks"


def _forget_groups(c10d: Any) -> None:
    if c10d.is_initialized():
        c10d._abort_process_group()
    if c10d.is_initialized():  # up to torch 2.6 that did nothing where no group was NCCL's
        c10d.destroy_process_group()
    # Groups are named by this, also those whose making failed. A process that is new to the next one begins at 0.
    c10d._world.group_count = 0


def _store_ports(c10d: Any) -> set[int]:
    """The ports of the stores that this process uses: those of its groups, and of groups that threads are making."""
    stores = {store for _, store in c10d._world.pg_map.values()}
    for frame in _frames_in_torch():
        stores |= {value for value in frame.f_locals.values() if isinstance(value, c10d.Store)}
    ports = {port for store in stores if (port := _port(store)) is not None}
    return ports | {port for _, port in _rendezvous_calls()}


def _port(store: Any) -> int | None:
    """The port of the TCPStore that is at the bottom; None for one that is in a file or in memory."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "port", None)


def _frames_in_torch() -> list[FrameType]:
    """The frames of other threads that are in code of torch.distributed.

    The others are let alone: to look at a frame's locals keeps alive, as long as the frame lasts, what they are now.
    """
    frames = list(_threads().values())
    for frame in frames:
        if frame.f_back is not None:
            frames.append(frame.f_back)
    return [frame for frame in frames if _is_in_torch(frame)]


def _is_in_torch(frame: FrameType) -> bool:
    return "torch/distributed/" in frame.f_code.co_filename


def _threads() -> dict[int, FrameType]:
    """The innermost frame of each thread but this one."""
    threads = sys._current_frames()
    del threads[threading.get_ident()]  # a frame that holds itself would keep all of these alive, groups included
    return threads


def _rendezvous_calls() -> set[tuple[str, int]]:
    """(host, port) of each store that a thread is making or connecting to, which is not yet an object to be found."""
    calls = (frame.f_locals for frame in _frames_in_torch() if frame.f_code.co_name == "_create_c10d_store")
    return {(str(given["hostname"]), int(given["port"])) for given in calls}


def _awaited_store() -> tuple[str, int] | None:
    """Where a thread waits for a store which could be on this machine."""
    return next((address for address in _rendezvous_calls() if _is_here(address[0])), None)


def _is_here(host: str) -> bool:
    try:
        socket.create_server((host, 0)).close()
    except OSError:
        return False
    return True


def _answer(awaited: tuple[str, int]) -> bool:
    """Be the store that a thread waits for, let it in, and hang up: one that tries to connect hears of nothing else."""
    store = None
    patience = monotonic() + PATIENCE_S
    while awaited in _rendezvous_calls() and monotonic() < patience:
        store = store or _open_store(awaited)
        sleep(PAUSE_S)
    cut(connections_to({awaited[1]}))
    return awaited not in _rendezvous_calls()


def _open_store(address: tuple[str, int]) -> Any:
    """A store that listens there; None where one does already: another rank of this machine may be doing the same."""
    from torch.distributed import TCPStore  # weight: it is there, or nobody would wait

    try:
        return TCPStore(*address, is_master=True, wait_for_workers=False)
    except RuntimeError:
        return None
