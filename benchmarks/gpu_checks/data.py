"""Data between processes: buffers on a GPU, transfers while a graph is captured, and tensors in calls and results."""

from __future__ import annotations

import os
import resource
import signal
import threading
from typing import Any

import torch

import meshbook
from gpu_checks import DEVICE, GIB, HAS_GPU, KIB, MIB, check, put, ranks, seconds_of
from meshbook import Actor, RDMABuffer, endpoint

SIZES = {"4_kib": 4 * KIB, "1_mib": MIB, "64_mib": 64 * MIB} | ({"1_gib": GIB} if HAS_GPU else {})
LARGE = GIB if HAS_GPU else 256 * MIB
COLUMNS = 1024
BACKEND = "cuda ipc" if HAS_GPU else "process memory"
HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}  # of the controller; its ranks see the GPU
SEEN = {"CUDA_VISIBLE_DEVICES": "0"}


def synchronize() -> None:
    if HAS_GPU:
        torch.cuda.synchronize()


def peak_mib() -> float:
    """Return the most memory of the host that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Holder(Actor):
    """Has tensors on the GPU, lends them, and sends and receives them."""

    @endpoint
    def lend(self, size: int) -> tuple[RDMABuffer, int]:
        self.memory = torch.full((size,), 7, dtype=torch.uint8, device=DEVICE)
        synchronize()
        self.buffer = RDMABuffer(self.memory)
        return self.buffer, os.getpid()

    @endpoint
    def drop(self) -> None:
        self.buffer.drop().get()
        del self.memory, self.buffer

    @endpoint
    def read(self, buffer: RDMABuffer, size: int, times: int) -> tuple[float, float, bool, str]:
        """Return the GB/s of reads and of copies within this process, whether the bytes are right, and the backend."""
        mine = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
        other = torch.ones_like(mine)
        buffer.read_into(mine).get()  # warm-up
        is_right = bool((mine == 7).all())

        def read() -> None:
            for _ in range(times):
                buffer.read_into(mine).get()
            synchronize()

        def copy() -> None:
            for _ in range(times):
                mine.copy_(other)
            synchronize()

        copy()
        amount = size * times / 1e9
        used = next(line for line in buffer.explain().splitlines() if line.startswith("->"))
        return amount / seconds_of(read), amount / seconds_of(copy), is_right, used[2:].split("  ")[0].strip()

    @endpoint
    def capture(self, buffer: RDMABuffer, size: int) -> list[str]:
        """Capture a graph while this thread and another one read a buffer, and log values; return what is wrong."""
        x = torch.ones(1024, device=DEVICE)
        into_cpu = torch.zeros(size, dtype=torch.uint8)
        into_gpu = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
        found: list[str] = []

        def read_on_another_thread() -> None:
            try:
                buffer.read_into(into_gpu).get()
                meshbook.log(total=into_cpu.sum())
            except Exception as error:
                found.append(f"another thread: {error!r}")

        buffer.read_into(into_cpu).get()  # connections and pinned memory exist from here on
        buffer.read_into(into_gpu).get()
        into_cpu.zero_()
        into_gpu.zero_()
        synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            other = threading.Thread(target=read_on_another_thread)
            other.start()
            other.join()
            try:
                buffer.read_into(into_cpu).get()
            except Exception as error:
                found.append(f"the capturing thread: {error!r}")
        x.fill_(5)
        graph.replay()
        synchronize()
        right = {"graph": (y == 10).all(), "to the GPU": (into_gpu == 7).all(), "to the CPU": (into_cpu == 7).all()}
        return found + [f"wrong values: {name}" for name, is_right in right.items() if not is_right]

    @endpoint
    def make(self, size: int) -> None:
        self.table = torch.zeros(size // 4 // COLUMNS, COLUMNS, device=DEVICE)
        self.table[3] = 3

    @endpoint
    def row(self) -> torch.Tensor:
        return self.table[3]

    @endpoint
    def quarter(self) -> torch.Tensor:
        return self.table[: len(self.table) // 4]

    @endpoint
    def receive(self, values: dict[str, Any]) -> dict[str, str]:
        """Return where each value has arrived."""
        return {name: str(value.device) for name, value in values.items()}

    @endpoint
    def kinds(self) -> dict[str, Any]:
        return kinds()

    @endpoint
    def send_to(self, other: Any) -> dict[str, str]:
        found: dict[str, str] = other.receive.call_one(kinds()).get()
        return found


def kinds() -> dict[str, Any]:
    """Return tensors of many kinds on this process's device."""
    x = torch.arange(6.0, device=DEVICE).view(2, 3)
    return {
        "float": x,
        "view": x.t(),
        "bfloat16": x.bfloat16(),
        "float8": x.to(torch.float8_e5m2),
        "complex": x.to(torch.complex64).conj(),
        "sparse": x.to_sparse(),
        "csr": x.to_sparse_csr(),
        "parameter": torch.nn.Parameter(x),
        "nested": torch.nested.nested_tensor([x[0], x[1, :2]], layout=torch.jagged),
    }


@check(40, environment={"MESHBOOK_RDMA_BACKENDS": f"{BACKEND},same process"})
def buffers_beside_copies() -> None:
    """Reads of another process's buffer by CUDA IPC, beside `copy_` in one process; also while its owner is stopped."""
    with ranks(2) as procs:
        actors = procs.spawn("holders", Holder)
        owner, reader = actors.slice(gpus=0), actors.slice(gpus=1)
        for name, size in SIZES.items():
            buffer, pid = owner.lend.call_one(size).get()
            times = max(2, min(200, 2 * GIB // size)) if HAS_GPU else 3
            os.kill(pid, signal.SIGSTOP)
            try:
                read, copy, is_right, backend = reader.read.call_one(buffer, size, times).get(30)
            finally:
                os.kill(pid, signal.SIGCONT)
            put(**{f"read_{name}_gb_per_s": read, f"copy_{name}_gb_per_s": copy})
            assert is_right, f"{name}: wrong bytes"
            assert backend == BACKEND, f"{name}: by {backend}"
            owner.drop.call_one().get()


@check(25, environment={"MESHBOOK_RDMA_BACKENDS": "message,same process"})
def buffer_by_messages() -> None:
    """The same by messages, for which the owner copies into the memory of the host."""
    with ranks(2) as procs:
        actors = procs.spawn("holders", Holder)
        buffer, _ = actors.slice(gpus=0).lend.call_one(64 * MIB).get()
        read, _, is_right, backend = actors.slice(gpus=1).read.call_one(buffer, 64 * MIB, 3).get()
        put(read_64_mib_gb_per_s=read)
        assert is_right
        assert backend == "message"


@check(25, needs_gpu=True)
def transfer_during_capture() -> None:
    """Transfers by the capturing thread and by another one, which also logs, do not break the capture of a graph."""
    with ranks(2) as procs:
        actors = procs.spawn("holders", Holder)
        buffer, _ = actors.slice(gpus=0).lend.call_one(MIB).get()
        wrong = actors.slice(gpus=1).capture.call_one(buffer, MIB).get()
        assert not wrong, wrong


def check_row(device: str) -> None:
    """Receive one row of a large tensor of a rank: its own bytes only, on this device. Then receive a quarter of it."""
    with ranks(1, env=SEEN) as procs:
        holder = procs.spawn("holder", Holder)
        holder.make.call_one(LARGE).get()
        before, rows = peak_mib(), []
        first = seconds_of(lambda: rows.append(holder.row.call_one().get()))
        later = seconds_of(lambda: rows.append(holder.row.call_one().get()))
        put(first_row_ms=first * 1e3, later_row_ms=later * 1e3, growth_of_the_receiver_mib=peak_mib() - before)
        put(storage_bytes=rows[0].untyped_storage().nbytes(), device=str(rows[0].device))
        assert rows[0].untyped_storage().nbytes() < 64 * KIB
        assert peak_mib() - before < 64 + (256 if HAS_GPU and device == "cuda" else 0)
        assert rows[0].device.type == device
        assert (rows[0] == 3).all()
        holder.quarter.call_one().get()
        put(quarter_gb_per_s=LARGE / 4 / 1e9 / seconds_of(lambda: holder.quarter.call_one().get()))


@check(25, needs_gpu=True)
def row_of_a_large_tensor() -> None:
    """One row of a tensor of 1 GiB in a result sends the bytes of the row, to the GPU of a controller that uses one."""
    torch.zeros(1, device=DEVICE)
    check_row(DEVICE)


@check(25, environment=HIDDEN)
def row_to_a_controller_without_a_gpu() -> None:
    """Such a row arrives on the CPU of a controller that sees no GPU."""
    check_row("cpu")


@check(30, environment=HIDDEN)
def kinds_of_tensors() -> None:
    """Tensors of many kinds go from rank to rank, onto its GPU, and to a controller without one, onto its CPU."""
    with ranks(2, env=SEEN) as procs:
        actors = procs.spawn("holders", Holder)
        first, second = actors.slice(gpus=0), actors.slice(gpus=1)
        arrived = first.send_to.call_one(second).get()
        assert {device.partition(":")[0] for device in arrived.values()} == {DEVICE}, arrived
        here = first.kinds.call_one().get()
        assert {str(value.device) for value in here.values()} == {"cpu"}
        assert here["view"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
        assert here["sparse"].to_dense().tolist() == here["float"].tolist()
        put(kinds=sorted(here))
