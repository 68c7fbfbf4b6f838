"""What ranks cost before they use a GPU, and what its first use costs."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import torch

from gpu_checks import (
    DEVICE,
    HAS_GPU,
    RunningKernel,
    check,
    gpu_used_mib,
    maps_library,
    memory_mib,
    put,
    ranks,
    seconds_of,
)
from meshbook import Actor, endpoint

RANKS = 8
FIRST_USE = """
import time
begun = time.perf_counter()
torch.ones(1, device=device).item()
time.perf_counter() - begun
"""


class Idle(Actor):
    """Uses a GPU only when it is asked to."""

    @endpoint
    def state(self) -> tuple[int, int, bool]:
        """Return its process, its fork server, and whether it uses CUDA."""
        return os.getpid(), os.getppid(), torch.cuda.is_initialized()

    @endpoint
    def use_gpu(self) -> tuple[float, int]:
        """Return the seconds of the first use of CUDA, and the number of the current GPU."""
        seconds = seconds_of(lambda: torch.ones(1, device=DEVICE).item())
        return seconds, torch.cuda.current_device() if HAS_GPU else 0


@check(35)
def ranks_and_their_first_use_of_a_gpu() -> None:
    """1 and 8 ranks start; idle ranks take no GPU memory; the first use of CUDA selects each rank's own GPU."""
    used, begun = gpu_used_mib(), time.perf_counter()
    with ranks(1):
        put(start_of_1_rank_seconds=time.perf_counter() - begun)
    begun = time.perf_counter()
    with ranks(RANKS) as procs:
        put(start_of_8_ranks_seconds=time.perf_counter() - begun)
        actors = procs.spawn("idle", Idle)
        put(first_call_of_8_ranks_seconds=seconds_of(lambda: actors.state.call().get()))
        states = list(actors.state.call().get().values())
        put(host_mib_of_an_idle_rank=statistics.mean(memory_mib(pid) for pid, _, _ in states))
        idle_mib = gpu_used_mib() - used
        put(gpu_mib_of_8_idle_ranks=idle_mib, idle_ranks_with_cuda=sum(uses for _, _, uses in states))
        servers = {server for _, server, _ in states}
        put(fork_server_maps_libcuda=any(maps_library(server, "libcuda.so") for server in servers))
        assert not any(uses for _, _, uses in states), "an idle rank has initialized CUDA"
        assert idle_mib < 64, f"idle ranks take {idle_mib:.0f} MiB of the GPU"
        assert not any(maps_library(server, "libcuda.so") for server in servers), "the fork server has loaded libcuda"
        if HAS_GPU:
            first = list(actors.use_gpu.call().get().values())
            put(first_use_of_cuda_seconds=max(seconds for seconds, _ in first))
            put(gpu_mib_of_a_rank_with_cuda=(gpu_used_mib() - used) / RANKS)
            put(host_mib_of_a_rank_with_cuda=statistics.mean(memory_mib(pid) for pid, _, _ in states))
            assert [gpu for _, gpu in first] == [rank % torch.cuda.device_count() for rank in range(RANKS)]


@check(20, needs_gpu=True, environment={"MESHBOOK_PRELOAD": "torch,touches_cuda"})
def preloaded_module_that_uses_cuda() -> None:
    """A module in MESHBOOK_PRELOAD that asks for GPUs is left out, and the ranks can use theirs."""
    Path("touches_cuda.py").write_text("import torch\ntorch.cuda.is_available()\n")
    os.environ["PYTHONPATH"] = str(Path.cwd())
    with ranks(2) as procs:
        actors = procs.spawn("idle", Idle)
        put(first_use_of_cuda_seconds=max(seconds for seconds, _ in actors.use_gpu.call().get().values()))


@check(25)
def notebook() -> None:
    """A kernel starts 8 ranks, whose cells without a GPU begin no CUDA context."""
    used = gpu_used_mib()
    opened: list[RunningKernel] = []
    put(kernel_and_mesh_seconds=seconds_of(lambda: opened.append(RunningKernel(RANKS))))
    with opened[0] as book:
        put(first_cell_seconds=seconds_of(lambda: book.run("%%mesh\nx = 1")))
        put(later_cell_seconds=seconds_of(lambda: book.run("%%mesh\nx = 1")))
        begun = book.values("import torch; torch.cuda.is_initialized()")
        put(gpu_mib_of_8_idle_ranks=gpu_used_mib() - used)
        assert begun == [False] * RANKS
        devices = book.values("str(device)")
        put(devices=sorted(set(devices)))
        put(first_use_seconds=max(book.values(FIRST_USE)))
        put(gpu_mib_of_8_ranks_with_cuda=gpu_used_mib() - used)
