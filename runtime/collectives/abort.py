"""Releases the threads of this process that are stuck in a collective, in a rendezvous or in a store.

They wait in C++, where neither a signal nor an exception reaches them. NCCL has its own abort; gloo and stores react to
the end of their connections (`sockets.py`). Afterwards the groups of this process are gone. Its peers find the
connections closed, so their waits in the same groups fail, too.
`find_collective` names the collective that a thread is in, from its stack.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future, wait
from types import FrameType
from typing import Any

from meshbook.runtime.clock import monotonic, sleep
from meshbook.runtime.collectives.sockets import connections_to, cut, gloo_connections

logger = logging.getLogger(__name__)
# A client of a store that does not listen retries about once a second.
PATIENCE_S = 2.5
PAUSE_S = 0.02  # between checks of other threads' stacks: no event reports that one has left C++
FREEING_S = 1.0
DESTROYING_S = 5.0  # for the abort of all groups, which takes milliseconds
_aborting = threading.Lock()


def abort_groups(default: weakref.ref[Any] | None = None) -> list[str]:
    """Release every thread that is stuck in torch.distributed, and destroy all process groups of this process.

    With `default`, which refers to a default process group, do nothing unless it still is that of this process: another
    thread may have aborted it, and be creating the next one.

    Call it on another thread than the stuck one. The stuck thread gets a RuntimeError: within milliseconds, or in about
    a second if it waits for a store that no process has opened. Afterwards torch reports that the default process group
    has not been initialized, until it is again; groups of some of the ranks are gone as well.

    Returns descriptions of the aborted groups; an empty list if there were none.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:  # torch.distributed is unused; importing it would take a second
        return []
    with _aborting:
        if default is not None and ((group := default()) is None or group is not c10d.GroupMember.WORLD):
            return []
        return _abort_all(c10d)


def _abort_all(c10d: Any) -> list[str]:
    stores = _store_ports(c10d)
    aborted = [f"{c10d._world.pg_map[group][0]} group of {group.size()} ranks" for group in c10d._world.pg_names]
    freed = cut(gloo_connections())
    _forget_groups_in_time(c10d)
    freed += cut(connections_to(stores))
    while (awaited := next(filter(_is_here, _rendezvous_calls()), None)) is not None and _answer(awaited):
        freed += 1
    return aborted or ["a process group that was being created"] * bool(freed)


def abort_after_death(size: int) -> threading.Thread | None:
    """Begin to abort the groups if a rank of the default group, of this size, has died and the group uses NCCL.

    With NCCL the other ranks wait for it in a kernel, without an end. With gloo they get an error.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or (group := c10d.GroupMember.WORLD) is None or group.size() != size:
        return None
    if "nccl" not in c10d.get_backend_config(group):
        return None
    thread = threading.Thread(target=abort_groups, args=(weakref.ref(group),), name="meshbook abort", daemon=True)
    thread.start()
    return thread


def stuck_threads() -> dict[int, FrameType]:
    """Return the other threads that are in a collective or creating a group, with the innermost such frame."""
    found: dict[int, FrameType] = {}
    for ident, frame in _threads().items():
        inner: FrameType | None = frame
        while inner is not None and not inner.f_code.co_filename.endswith(TORCH_FILES):
            inner = inner.f_back
        if inner is not None:
            found[ident] = inner
    return found


def wait_freed(stuck: dict[int, FrameType], patience: float = FREEING_S) -> str:
    """Wait until these threads have left, normally within milliseconds; on timeout name the function of one."""
    deadline = monotonic() + patience
    while left := [frame for ident, frame in stuck_threads().items() if stuck.get(ident) is frame]:
        if monotonic() > deadline:
            return left[0].f_code.co_name
        del left  # frames hold the groups
        sleep(PAUSE_S)
    return ""


def _forget_groups_in_time(c10d: Any) -> None:
    """Destroy all groups, on a thread of its own: NCCL may wait forever, and only a kill frees the process then."""
    destroyed: Future[None] = Future()

    def run() -> None:
        try:
            _forget_groups(c10d)
        except Exception as error:
            destroyed.set_exception(error)
        else:
            destroyed.set_result(None)

    threading.Thread(target=run, name="meshbook abort", daemon=True).start()
    if not wait([destroyed], DESTROYING_S).done:
        logger.warning("the process groups are not destroyed after %g s; if it stays so, kill the rank", DESTROYING_S)
    else:
        destroyed.result()


def _forget_groups(c10d: Any) -> None:
    if c10d.is_initialized():
        c10d._abort_process_group()
    if c10d.is_initialized():  # up to torch 2.6 that did nothing without an NCCL group
        c10d.destroy_process_group()
    # Group names contain this number, also those of failed attempts. A new process in the next group starts at 0.
    c10d._world.group_count = 0


def _store_ports(c10d: Any) -> set[int]:
    """Return the ports of the stores that this process uses: of its groups, and of groups that threads are creating."""
    stores = {store for _, store in c10d._world.pg_map.values()}
    for frame in _frames_in_torch():
        stores |= {value for value in frame.f_locals.values() if isinstance(value, c10d.Store)}
    ports: set[int] = set()
    for store in stores:
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        if hasattr(store, "port"):  # not a store in a file or in memory
            ports.add(store.port)
    return ports | {port for _, port in _rendezvous_calls()}


def _frames_in_torch() -> list[FrameType]:
    """Return the frames of other threads that are in code of torch.distributed.

    Other frames are skipped: reading a frame's locals keeps their current values alive as long as the frame lasts.
    """
    frames = list(_threads().values())
    for frame in frames:
        if frame.f_back is not None:
            frames.append(frame.f_back)
    return [frame for frame in frames if "torch/distributed/" in frame.f_code.co_filename]


def _threads() -> dict[int, FrameType]:
    """Return the innermost frame of each thread but this one."""
    threads = sys._current_frames()
    del threads[threading.get_ident()]  # a frame that holds itself would keep all of these alive, groups included
    return threads


def _rendezvous_calls() -> set[tuple[str, int]]:
    """Return (host, port) of each store that a thread is creating or connecting to, and that is no object yet."""
    calls = (frame.f_locals for frame in _frames_in_torch() if frame.f_code.co_name == "_create_c10d_store")
    return {(str(given["hostname"]), int(given["port"])) for given in calls}


def _is_here(address: tuple[str, int]) -> bool:
    """Return whether the host of an awaited store is this machine."""
    try:
        socket.create_server((address[0], 0)).close()
    except OSError:
        return False
    return True


def _answer(awaited: tuple[str, int]) -> bool:
    """Open the store that a thread waits for, let it connect, and hang up: nothing else ends its attempt."""
    store = None
    patience = monotonic() + PATIENCE_S
    while awaited in _rendezvous_calls() and monotonic() < patience:
        store = store or _open_store(awaited)
        sleep(PAUSE_S)
    cut(connections_to({awaited[1]}))
    return awaited not in _rendezvous_calls()


def _open_store(address: tuple[str, int]) -> Any:
    """Return a store that listens there; None if the port is taken: another rank of this host may be doing the same."""
    from torch.distributed import TCPStore  # weight: torch is already imported, or no thread would wait

    try:
        return TCPStore(*address, is_master=True, wait_for_workers=False)
    except RuntimeError:
        return None


# The functions that users call and that wait for other ranks are in these files of torch, under their public names.
TORCH_FILES = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/device_mesh.py",
    "torch/distributed/_functional_collectives.py",
)
DECORATOR = "wrapper"
QUERY_PREFIXES = ("get_", "is_")  # `get_rank()` and similar functions never wait
# Steps of DistributedDataParallel in which ranks compare their models and copy that of the first.
DDP = frozenset({"_verify_param_shape_across_processes", "_sync_module_states", "_sync_params_and_buffers"})
DDP_MODULE = "torch/nn/parallel/distributed.py"
BACKWARD = ("torch/autograd/graph.py", "_engine_run_backward")


def find_collective(frames: Iterable[tuple[str, str]]) -> str | None:
    """Return the collective that a thread is in, by its public name: `all_reduce`, `barrier`, `init_process_group`.

    `frames` are the (file name, function name) of its stack, outermost first. `DistributedDataParallel` while such a
    model is being created, or waits in its own code, as its second `forward` does when it rebuilds the buckets.
    `backward` for any backward pass: the gradients of such a model are reduced within it, in C++, so it may wait there
    or compute. None if it is in no collective, as far as Python's frames show: a thread that waits for the `Work` of an
    asynchronous operation is in a line of the user's own.
    """
    stack = [(file.replace("\\", "/"), function) for file, function in frames]
    for file, function in stack:
        if file.endswith(TORCH_FILES) and function != DECORATOR and not function.startswith(("_", *QUERY_PREFIXES)):
            return function
        if function in DDP and "torch/" in file:
            return "DistributedDataParallel"
    if stack and stack[-1][0].endswith(DDP_MODULE):
        return "DistributedDataParallel"
    if stack and stack[-1][0].endswith(BACKWARD[0]) and stack[-1][1] == BACKWARD[1]:
        return "backward"
    return None
