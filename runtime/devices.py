"""The GPUs of this process, by torch: the only place of the runtime that calls `torch.cuda` or `torch.accelerator`.

Nothing here imports torch, or initializes a GPU that the user's code has not used: a CUDA context takes 300 to 500 MB
of the GPU's memory and up to a second. Where a function needs an initialized GPU, its docstring says so.

Each thread has a current GPU, and a current stream of each GPU. A new thread begins with GPU 0 and default streams.
Most calls, also the query of an event, create a CUDA context on the current GPU of their thread.
"""

from __future__ import annotations

import functools
import sys
import threading
from dataclasses import dataclass
from typing import Any

CUDA = "cuda:"


def cuda() -> Any:
    """Return `torch.cuda`; None if torch is not imported. Tests put a fake here."""
    torch = sys.modules.get("torch")
    # The module lacks its attributes while another thread imports it.
    return getattr(torch, "cuda", None)


def is_in_use() -> bool:
    """Return whether this process uses a GPU."""
    return (api := cuda()) is not None and bool(api.is_initialized())


def count() -> int:
    """Return the number of visible GPUs; 0 if torch is not imported."""
    return 0 if (api := cuda()) is None else int(api.device_count())


def number_of(local_rank: int) -> int:
    """Return the number of the GPU of the n-th rank of a host. Ranks share GPUs if there are too few, but not none."""
    return local_rank % count()


def use(number: int) -> None:
    """Make this GPU the current one of this thread, which initializes it."""
    cuda().set_device(number)


def on(device: Any) -> Any:
    """Return a context manager in which this GPU is the current one of the thread; None changes nothing."""
    return cuda().device(device)


def generator() -> Any:
    """Return the default random generator of this thread's current GPU, which is in use."""
    return cuda().default_generators[cuda().current_device()]


# -- each thread's own GPU -----------------------------------------------------------------


class OwnGpu:
    """Makes the GPU of this rank the current one of each thread that runs the user's code, once the process uses CUDA.

    `local_rank`: this process is the n-th rank of its host. Known limit: a call that is running on another thread when
    CUDA is first used stays with GPU 0, like a thread that the user's code starts.
    """

    def __init__(self) -> None:
        self.local_rank = 0
        self.is_installed = False
        self.is_in_use = False
        self._threads = _ThreadState()

    def install(self) -> None:
        """Select the GPU when CUDA is first used. Torch is imported already."""
        self.is_installed = True
        if (api := cuda()) is not None and api._is_compiled():
            api._lazy_call(self._begin)

    def select(self) -> None:
        """Make the own GPU current on this thread, once: the user's code may select another one. Called often."""
        if self.is_in_use and self._threads.local_rank != self.local_rank:
            self._set()

    def use_own_stream(self) -> None:
        """Give this thread a CUDA stream of its own from its first use of CUDA on."""
        self._threads.wants_stream, self._threads.local_rank = True, -1
        self.select()

    def _begin(self) -> None:
        # On the thread that uses CUDA first, before its first operation.
        self.is_in_use = True
        self._set()

    def _set(self) -> None:
        self._threads.local_rank = self.local_rank
        use(number_of(self.local_rank))
        if self._threads.wants_stream:
            api = cuda()
            api.set_stream(api.Stream())


class _ThreadState(threading.local):
    local_rank = -1  # whose GPU was selected
    wants_stream = False


OWN_GPU = OwnGpu()  # of this process


def arrival_device(kind: str) -> str:
    """Return where a tensor of another process arrives that was on this type of device: the current GPU, or the CPU.

    A rank with a GPU uses it. Other processes, such as a notebook, use theirs if the user's code does already.
    """
    if kind in ("cpu", "meta"):
        return kind
    if kind == "cuda" and (OWN_GPU.is_installed or is_in_use()) and count():
        OWN_GPU.select()
        return kind
    return "cpu"


# -- order of work -------------------------------------------------------------------------


def is_capturing(device: Any) -> bool:
    """Return whether this thread's current stream of this GPU captures a graph: its work is recorded, and does not run.

    None: of the current GPU.
    """
    if not is_in_use():
        return False
    with on(device):
        return bool(cuda().is_current_stream_capturing())


def record_event(device: Any = None, *, is_timed: bool = False) -> Any:
    """Return an event after all work of this thread's current stream of this GPU (None: of the current one).

    Return None if no GPU is in use, or while a graph is captured: the work does not run then.
    """
    if not is_in_use() or is_capturing(device):
        return None
    with on(device):
        event = cuda().Event(enable_timing=is_timed)
        event.record()
    return event


def wait_for_stream(device: Any = None) -> None:
    """Wait for the work of this thread's current stream of this GPU (None: of the current one).

    Other streams are not waited for: a collective there may itself wait for this thread.
    """
    if (event := record_event(device)) is not None:
        with on(device):
            event.synchronize()


def continue_after(event: Any, value: Any) -> None:
    """Let this thread's current stream use a value of another stream, once that has reached the event."""
    event.wait()
    if getattr(value, "is_cuda", False):
        value.record_stream(cuda().current_stream())  # the memory of the tensor is kept until then


# -- names and figures ---------------------------------------------------------------------


def allocated() -> int:
    """Return the bytes of this process's tensors on this thread's current GPU; 0 if no GPU is in use."""
    return int(cuda().memory_allocated()) if is_in_use() else 0


def name_everywhere(device: str) -> str:
    """Return `cuda:<UUID>` for torch's `cuda:0`, whose number differs between processes. Return other names as is."""
    return f"{CUDA}{uuid_of(int(device.removeprefix(CUDA)))}" if device.startswith(CUDA) else device


def number_here(name: str) -> int | None:
    """Return this process's number for a GPU with such a name; None if it is not visible (CUDA_VISIBLE_DEVICES)."""
    return next((number for number in range(count()) if f"{CUDA}{uuid_of(number)}" == name), None)


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The bytes of a GPU that torch has given to this process: to tensors now, at most and in sum, and reserved."""

    allocated: int = 0
    peak: int = 0
    total: int = 0
    reserved: int = 0

    def peak_since(self, before: GpuMemory) -> int:
        """Return an upper bound of what was allocated at any time since; exact if it exceeds the peak before.

        The peak itself belongs to the user's code, which may reset it and read it at any time.
        """
        return max(self.allocated, min(self.peak, before.allocated + self.total - before.total))


def memory() -> GpuMemory | None:
    """Return the memory of this thread's current GPU; None if none is in use, or its CUDA context is lost."""
    if not is_in_use():
        return None
    try:
        stats = cuda().memory_stats_as_nested_dict()
    except RuntimeError:
        return None
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    return GpuMemory(allocated["current"], allocated["peak"], allocated["allocated"], reserved["current"])


def free_memory() -> int:
    """Return the free bytes of this thread's current GPU, which is in use."""
    return int(cuda().mem_get_info()[0])


def current_uuid() -> str:
    """Return the UUID of this thread's current GPU, which is in use."""
    return uuid_of(cuda().current_device())


@functools.cache
def uuid_of(number: int) -> str:
    """Return the UUID of a GPU, without `GPU-`; it must be in use."""
    return str(cuda().get_device_properties(number).uuid)
