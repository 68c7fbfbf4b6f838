"""Memory of GPUs: the way by CUDA IPC over a driver that is played here, pinned memory in between, and real GPUs."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

import meshbook
from meshbook import Actor, ProcMesh, RDMABuffer, endpoint, this_host
from meshbook.runtime import devices
from meshbook.runtime.actor.context import Instance
from meshbook.runtime.errors import BufferDropped, TransferError
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.memory import cuda, pinned
from meshbook.runtime.memory.cuda import HANDLE_BYTES, CudaError, Driver
from meshbook.runtime.memory.local_memory import LocalMemory, local_memory
from meshbook.runtime.memory.pinned import PinnedPieces
from meshbook.runtime.memory.process_identity import own_mark
from meshbook.runtime.rdma.backends import BufferHandle, Deadline, TransferJob, Unsuitable
from meshbook.runtime.rdma.backends.cuda_ipc import CudaIpcBackend, CudaIpcOffer, IpcHandles
from meshbook.runtime.rdma.backends.process_memory import ProcessMemoryBackend
from meshbook.runtime.rdma.backends.same_process import SameProcessBackend
from meshbook.runtime.rdma.hardware import Fallback, RDMAReadTransferWarning, RDMAWriteTransferWarning
from meshbook.runtime.rdma.leases import LeaseTable
from meshbook.runtime.rdma.progress import ActiveTransfers
from meshbook.runtime.rdma.select_backend import BackendSelector
from meshbook.runtime.rdma.transfers import Transfers
from meshbook.runtime.telemetry.loggable import loggable
from meshbook.runtime.telemetry.spans import Recorder
from meshbook.runtime.wire.messages import Address
from tests.fake_gpus import FakeCuda, FakeStream, install_fake
from tests.support import PATIENCE

GPU = "cuda:uuid-1"  # as handles name it


# --- the driver's calls ---


class FakeLibrary:
    """Plays `libcuda`: records the calls, and answers as the test sets it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails: dict[str, int] = {}
        self.capture_modes: list[str] = []  # of the thread, one after the other
        self._mode = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cuMemGetAddressRange_v2":
                arguments[0]._obj.value = 0x1000
            elif name == "cuIpcGetMemHandle":
                ctypes.memmove(arguments[0]._obj.data, bytes(range(HANDLE_BYTES)), HANDLE_BYTES)
            elif name == "cuIpcOpenMemHandle_v2":
                arguments[0]._obj.value = bytes(arguments[1].data)[5]
            elif name == "cuThreadExchangeStreamCaptureMode":
                mode = arguments[0]._obj
                self._mode, mode.value = mode.value, self._mode
                self.capture_modes.append(("global", "thread-local", "relaxed")[self._mode])
            elif name == "cuGetErrorString":
                arguments[1]._obj.value = b"no such luck"
            return self.fails.get(name, 0)

        return call


def test_the_driver_is_called_in_the_context_of_the_gpu_and_errors_are_raised() -> None:
    library = FakeLibrary()
    driver = Driver(library)
    assert driver.export(0, 0x1010) == (bytes(range(HANDLE_BYTES)), 0x10)
    around = ["cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"]
    asked = ["cuMemGetAddressRange_v2", "cuIpcGetMemHandle"]
    assert library.calls == ["cuDeviceGet", "cuDevicePrimaryCtxRetain", around[0], *asked, around[1]]
    assert driver.open(0, bytes(range(HANDLE_BYTES))) == 5
    library.fails["cuMemcpyAsync"] = 700
    library.calls.clear()
    with pytest.raises(CudaError, match=r"cuMemcpyAsync of the CUDA driver: no such luck \(700\)"):
        driver.copy(0, 1, 2, 3)
    assert library.calls == [around[0], "cuMemcpyAsync", "cuGetErrorString", around[1]]
    old_ones = ("cuDeviceGet", "cuDevicePrimaryCtxRetain", *around)
    older = SimpleNamespace(**{name: lambda *arguments: 0 for name in old_ones})
    with pytest.raises(CudaError, match="has no cuIpcCloseMemHandle"):
        Driver(older).close(0, 1)


def test_threads_of_ours_wait_for_gpus_while_another_thread_captures_a_graph(
    gpus: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = FakeLibrary()
    monkeypatch.setattr(cuda, "driver", lambda: Driver(library))
    tensor = torch.tensor(0.5)
    value = SimpleNamespace(is_cuda=True, shape=(), device="cuda:1", item=tensor.item, detach=tensor.detach)
    copy: Any = loggable("loss", value)
    gpus.calls.clear()
    assert (copy.has_arrived(), copy.read()) == (True, 0.5)
    assert [name for name, *_ in gpus.calls] == ["query", "wait"]
    assert library.capture_modes == ["thread-local", "global"] * 2
    gpus.capturing.add(threading.get_ident())
    with pytest.raises(RuntimeError, match="log it after"):
        loggable("loss", value)


def test_unused_handles_are_closed() -> None:
    closed: list[int] = []
    imports = IpcHandles(lambda allocation: allocation[0] + 100, lambda allocation, address: closed.append(address))
    segment, other = (0, b"a"), (1, b"b")
    with imports.use(segment, ("m.0", 1)) as first, imports.use(segment, ("m.0", 2)), imports.use(other, ("m.1", 3)):
        assert first == (100, True)
        imports.forget(lambda buffer: buffer[0] == "m.1")
        assert closed == []  # a transfer is at it
    assert closed == [101]
    with imports.use(segment, ("m.0", 1)) as again:
        assert again == (100, False)
    imports.forget(lambda buffer: buffer == ("m.0", 1))
    assert closed == [101]  # the other one is in the same allocation
    imports.forget(lambda buffer: True)
    assert closed == [101, 100]


# --- the way ---


class FakeDriver:
    """Plays GPU memory with memory of this process, which begins 16 bytes into its allocation."""

    def __init__(self, memory: Any) -> None:
        self.base = local_memory(memory, "memory").address - 16
        self.opened: list[int] = []
        self.fails = ""

    def export(self, number: int, address: int) -> tuple[bytes, int]:
        if self.fails:
            raise CudaError(self.fails)
        return bytes(HANDLE_BYTES), address - self.base

    def open(self, number: int, handle: bytes) -> int:
        if self.fails:
            raise CudaError(self.fails)
        self.opened.append(number)
        return self.base

    def close(self, number: int, address: int) -> None:
        self.opened.remove(number)

    def copy(self, number: int, to: int, source: int, size: int) -> None:
        if self.fails:
            raise CudaError(self.fails)
        ctypes.memmove(to, source, size)


@pytest.fixture(autouse=True)
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda | None]:
    if request.node.get_closest_marker("gpu"):
        yield None
        return
    made = install_fake(monkeypatch)
    devices.OWN_GPU.local_rank = 1
    made.use()
    yield made
    assert made.contexts == {1}  # no thread of ours has created one on GPU 0


class Played:
    """A buffer in the memory of a GPU, and the way to it."""

    def __init__(self, folder: Path) -> None:
        self.memory = bytearray(range(200))
        self.driver = FakeDriver(self.memory)
        self.followed: list[int] = []
        self.in_progress = ActiveTransfers("here")
        memory = ProcessMemoryBackend(self.in_progress)
        self.way = CudaIpcBackend(memory, lambda handle: self.followed.append(handle.lease.number), lambda: self.driver)  # type: ignore[arg-type,return-value]
        self.leases = LeaseTable(str(folder))
        self.local = replace(local_memory(self.memory, "memory"), device="cuda:1")
        lender = Instance("owner-1@x", "Owner", SCALAR.point(0), None)
        self.lease = self.leases.lend(self.local, lender).lease

    def handle(self) -> BufferHandle:
        offer = self.way.offer(self.local, self.lease)
        assert offer is not None
        return BufferHandle(
            *(Address("m.0", "x"), 0, "owner", own_mark(), None, self.lease),
            *(self.local.address, self.local.size, GPU, {self.way.name: offer}),
        )

    def job(self, size: int) -> tuple[bytearray, TransferJob]:
        landed = bytearray(size)
        return landed, TransferJob(self.handle(), 50, local_memory(landed, "dst"), Deadline(10))


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Played]:
    made = Played(tmp_path)
    yield made
    made.way.close()
    assert made.driver.opened == []
    made.in_progress.close()


def test_the_gpu_copies_from_and_to_where_the_buffer_lies(played: Played) -> None:
    landed, job = played.job(20)
    played.way.read(job)
    assert landed == played.memory[50:70]
    landed[:] = bytes(20)
    played.way.write(job)
    assert played.memory[49:71] == bytes([49, *bytes(20), 70])
    assert (played.driver.opened, played.followed) == ([1], [played.lease.number])
    played.way.forget("m.0", 5)
    assert played.driver.opened == [1]
    played.way.forget("m.0", played.lease.number)
    assert played.driver.opened == []


def test_dropped_buffers_are_not_touched_and_failures_are_reported(played: Played) -> None:
    landed, job = played.job(20)
    played.driver.fails = "out of luck"
    with pytest.raises(Unsuitable, match=r"cannot open .*out of luck"):
        played.way.read(job)
    played.driver.fails = ""
    played.way.read(job)
    played.driver.fails = "out of luck"
    with pytest.raises(TransferError, match=r"failed to copy 20 bytes of owner: out of luck"):
        played.way.read(job)
    played.leases.end(played.lease.number)
    played.driver.fails = ""
    landed[:] = bytes(20)
    with pytest.raises(BufferDropped):
        played.way.read(job)
    assert landed == bytes(20)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"device": "cpu"}, "not on a GPU"),
        ({"process": own_mark()}, "the owner is this process"),
        ({"process": msgspec.structs.replace(own_mark(), pid=1, system="other")}, "another host"),
        ({"device": "cuda:other"}, "not visible to this process"),
        ({"offers": {}}, "offers no CUDA IPC handle"),
        ({"offers": {"cuda ipc": msgspec.msgpack.encode(CudaIpcOffer(why_not="for a reason"))}}, "for a reason"),
        ({}, ""),
    ],
)
def test_it_says_why_it_does_not_lead_there(played: Played, change: dict[str, Any], refusal: str) -> None:
    another = msgspec.structs.replace(played.handle(), process=msgspec.structs.replace(own_mark(), pid=1))
    reason = played.way.refusal(msgspec.structs.replace(another, **change), None)
    assert refusal in reason
    assert bool(refusal) is bool(reason)


def test_memory_that_cannot_be_shared_says_so_in_its_handle(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    played.driver.fails = "invalid argument"
    another = msgspec.structs.replace(played.handle(), process=msgspec.structs.replace(own_mark(), pid=1))
    assert "cannot share it (invalid argument)" in played.way.refusal(another, None)
    assert played.way.offer(replace(played.local, device="cpu"), played.lease) is None


# --- pinned memory in between ---


class HostWay:
    """Reaches memory of CPUs alone, over there in `memory`."""

    is_immediate = True

    def __init__(self, name: str, memory: bytearray) -> None:
        self.name = name
        self.memory = memory

    def refusal(self, handle: BufferHandle, local: str | None) -> str:
        return "" if local in (None, "cpu") or self.name == "message" else "the memory is on a GPU"

    def read(self, job: TransferJob) -> None:
        job.local.view()[:] = self.memory[job.offset : job.offset + job.local.size]
        job.moved(job.local.size)

    def write(self, job: TransferJob) -> None:
        self.memory[job.offset : job.offset + job.local.size] = job.local.view()
        job.moved(job.local.size)


def allocate_unpinned(size: int) -> LocalMemory:
    return local_memory(torch.empty(size, dtype=torch.uint8), "memory")


def on_gpu(tensor: Any) -> LocalMemory:
    return replace(local_memory(tensor, "dst"), device="cuda:1")


def test_a_gpu_here_is_reached_by_way_of_the_host(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "PIECE", 64)
    memory, backends = bytearray(range(200)), list[str]()
    selector: Any = BackendSelector([HostWay("process memory", memory), HostWay("message", bytearray(200))])  # type: ignore[list-item]
    transfers = Transfers(selector, lambda *_: None, Recorder(0), lambda job, way, seconds, write: backends.append(way))
    monkeypatch.setattr(pinned, "PIECES", PinnedPieces(allocate_unpinned))
    landed, moved = torch.zeros(150, dtype=torch.uint8), list[int]()
    job = TransferJob(
        msgspec.structs.replace(played.handle(), device="cpu"), 30, on_gpu(landed), Deadline(10), moved.append
    )
    transfers.move(job, is_write=False)
    assert bytes(landed) == bytes(range(30, 180))
    landed += 1
    transfers.move(job, is_write=True, checksum=True)
    assert memory == bytes([*range(30), *range(31, 181), *range(180, 200)])
    assert moved == [64, 64, 22] * 2
    assert backends == ["process memory"] * 2
    transfers.close()


def test_a_transfer_waits_for_the_callers_stream_and_never_for_a_device(
    played: Played, gpus: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = FakeLibrary()
    monkeypatch.setattr(cuda, "driver", lambda: Driver(library))
    handle = msgspec.structs.replace(played.handle(), device="cpu")
    selector: Any = BackendSelector([HostWay("process memory", bytearray(200)), HostWay("message", bytearray(200))])  # type: ignore[list-item]
    transfers = Transfers(selector, lambda *_: None, Recorder(0), lambda *_: None)
    monkeypatch.setattr(pinned, "PIECES", PinnedPieces(allocate_unpinned))
    here = threading.current_thread().name
    gpus.set_stream(FakeStream(gpus, "of the caller"))
    gpus.calls.clear()
    memory = on_gpu(torch.zeros(150, dtype=torch.uint8))
    transfers.start(TransferJob(handle, 30, memory, Deadline(PATIENCE)), is_write=True).result(PATIENCE)
    recorded, waited = gpus.named("record", "wait")
    assert recorded == ("record", here, "of the caller")
    assert (waited[0], waited[2]) == ("wait", "of the caller")
    assert waited[1] != here  # the caller's thread goes on
    assert library.capture_modes == ["thread-local", "global"]
    gpus.calls.clear()
    gpus.capturing.add(threading.get_ident())
    transfers.start(TransferJob(handle, 30, memory, Deadline(PATIENCE)), is_write=True).result(PATIENCE)
    assert gpus.calls == []  # an event of a captured stream may not be waited for
    transfers.close()


def test_memory_of_a_gpu_in_this_process_is_not_copied_by_the_calling_thread(played: Played, gpus: FakeCuda) -> None:
    memory = torch.arange(8, dtype=torch.uint8)
    lent = played.leases.lend(on_gpu(memory), Instance("owner-1@x", "Owner", SCALAR.point(0), None))
    owner = Address("m.0", "x")
    backend = SameProcessBackend(owner, 0, played.leases)
    handle = msgspec.structs.replace(played.handle(), lease=lent.lease)
    transfers = Transfers(BackendSelector([backend]), lambda *_: None, Recorder(0), lambda *_: None)
    landed = torch.zeros(8, dtype=torch.uint8)
    gpus.calls.clear()
    transfers.start(TransferJob(handle, 0, on_gpu(landed), Deadline(PATIENCE)), is_write=False).result(PATIENCE)
    assert landed.tolist() == memory.tolist()
    calls = gpus.named("record", "wait", "synchronize the device")
    assert [call[0] for call in calls] == ["record", "wait", "record", "wait"]
    here = threading.current_thread().name
    assert [call[1] == here for call in calls] == [True, False, False, False]
    transfers.close()


def test_a_tensor_of_a_gpu_passes_through_two_pieces_of_pinned_memory(
    gpus: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of one piece by the GPU goes on while the CPU copies the other one."""
    monkeypatch.setattr(pinned, "PIECE", 64)
    pieces = PinnedPieces(allocate_unpinned)
    for copy, calls in (
        (pieces.download, ["record", "record", "wait", "record", "wait", "wait"]),
        (pieces.upload, ["record", "record", "wait", "record", "wait", "wait"]),
    ):
        source, to = torch.arange(150, dtype=torch.uint8), torch.zeros(150, dtype=torch.uint8)
        gpus.calls.clear()
        copy(source, to, "cuda:1")
        assert torch.equal(to, source)
        assert [name for name, *_ in gpus.named("record", "wait", "synchronize the device")] == calls
        copy(source[:0], to[:0], "cuda:1")
    with pieces.borrowed() as one, pieces.borrowed() as other:
        assert one.address != other.address


def test_from_gpu_to_gpu_by_messages_is_warned_of_once(played: Played) -> None:
    fallback = Fallback(lambda: "here")
    for is_write, kind in ((False, RDMAReadTransferWarning), (True, RDMAWriteTransferWarning)):
        with pytest.warns(kind, match="owner on m.0 moves through CPU memory"):
            fallback.note_gpu("message", played.handle(), is_write=is_write)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fallback.note_gpu("message", played.handle(), is_write=is_write)
            fallback.note_gpu("cuda ipc", played.handle(), is_write=is_write)


# --- real GPUs ---


class OnGpu(Actor):
    """Has a tensor on a GPU, and moves others'."""

    def __init__(self) -> None:
        self.tensor = torch.arange(5 << 20, dtype=torch.float32, device="cuda").view(-1, 1024)
        self.buffer = RDMABuffer(self.tensor)

    @endpoint
    def lend(self) -> tuple[RDMABuffer, int]:
        return self.buffer, os.getpid()

    @endpoint
    def total(self) -> float:
        return float(self.tensor.double().sum())

    @endpoint
    def move(self, buffer: RDMABuffer, device: str, value: float | None) -> tuple[str, float]:
        data = torch.full_like(self.tensor, value or 0.0, device=device)
        (buffer.read_into(data) if value is None else buffer.write_from(data)).get()
        return buffer.explain().partition("->")[2].split("\n")[0], float(data.double().sum())

    @endpoint
    def drop(self) -> None:
        self.buffer.drop().get()


@pytest.fixture(scope="module")
def procs() -> Iterator[ProcMesh]:
    mesh = this_host().spawn_procs({"gpus": 2})
    mesh.initialized.get()
    yield mesh
    mesh.stop().get()
    meshbook.close_session()


@pytest.mark.gpu
@pytest.mark.process
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_gpu_memory_of_another_process(procs: ProcMesh) -> None:
    actors = procs.spawn("actors", OnGpu)
    owner, other = actors.slice(gpus=0), actors.slice(gpus=1)
    buffer, pid = owner.lend.call_one().get()
    whole = owner.total.call_one().get()
    os.kill(pid, signal.SIGSTOP)
    try:
        for device in ("cuda", "cpu"):
            way, total = other.move.call_one(buffer, device, None).get()
            assert (way.split("  ")[0].strip(), total) == ("cuda ipc", whole)
            other.move.call_one(buffer, device, 1.0).get()
            other.move.call_one(buffer, device, 2.0).get()
            whole = 2.0 * (5 << 20)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert owner.total.call_one().get() == whole
    host = RDMABuffer(torch.full((5 << 20,), 3.0))  # to a GPU over there by pinned memory, and broadcast into it
    assert other.move.call_one(host, "cuda", None).get()[1] == 3.0 * (5 << 20)
    host.broadcast_to(buffers_of(actors)).get()
    assert list(actors.total.call().get().values()) == [3.0 * (5 << 20)] * 2
    owner.drop.call_one().get()
    with pytest.raises(meshbook.ActorError, match="dropped"):
        other.move.call_one(buffer, "cuda", None).get()


def buffers_of(actors: Any) -> Any:
    lent = actors.lend.call().get()
    return meshbook.ValueMesh.of(lent.extent, [buffer for buffer, _ in lent.values()])
