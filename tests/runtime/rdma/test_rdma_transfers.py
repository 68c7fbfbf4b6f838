"""How transfers are carried out: which way is chosen, what is told, and when they end without being done."""

from __future__ import annotations

import errno
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from meshbook.runtime.errors import CallCancelled, ChecksumMismatch, TransferError, TransferTimeout
from meshbook.runtime.memory.local_memory import LocalMemory, local_memory
from meshbook.runtime.memory.process_identity import ProcessMark, own_mark
from meshbook.runtime.rdma import select_backend as select_backend
from meshbook.runtime.rdma.backends import BufferHandle, Deadline, Lease, TransferBackend, TransferJob, Unsuitable
from meshbook.runtime.rdma.backends.process_memory import ProcessMemoryBackend
from meshbook.runtime.rdma.progress import ActiveTransfers
from meshbook.runtime.rdma.select_backend import EXCLUDED, SLOWER, BackendSelector, BackendVerdict, explain
from meshbook.runtime.rdma.thread_pool import Threads
from meshbook.runtime.rdma.transfers import INLINE_BYTES, TransferProgress, Transfers
from meshbook.runtime.telemetry.spans import Recorder
from meshbook.runtime.wire.messages import Address
from tests.support import PATIENCE


def handle_of(pid: int = 1, size: int = 8, **fields: Any) -> BufferHandle:
    mark = ProcessMark(pid, 0, "")
    return BufferHandle(Address("owner", ""), 0, "<Owner o>", mark, None, Lease(0, 1), 0, size, **fields)


class Memory(TransferBackend):
    """A way to one stretch of memory, which does as it is told."""

    def __init__(self, name: str, *, refuses: str = "", unsuitable: str = "", is_immediate: bool = True) -> None:
        self.name = name
        self.is_immediate = is_immediate
        self.data = bytearray(2 * INLINE_BYTES)
        self.threads: list[str] = []
        self.tried = 0
        self.before: Callable[[TransferJob], object] = lambda job: None
        self._refuses = refuses
        self._unsuitable = unsuitable

    def refusal(self, handle: BufferHandle, local: str | None) -> str:
        return self._refuses

    def read(self, job: TransferJob) -> None:
        self._begin(job)
        job.local.view()[:] = self.data[job.offset : job.offset + job.local.size]
        job.moved(job.local.size)

    def write(self, job: TransferJob) -> None:
        self._begin(job)
        self.data[job.offset : job.offset + job.local.size] = job.local.view()
        job.moved(job.local.size)

    def _begin(self, job: TransferJob) -> None:
        self.tried += 1
        self.threads.append(threading.current_thread().name)
        if self._unsuitable:
            raise Unsuitable(self._unsuitable)
        self.before(job)

    def offer(self, local: LocalMemory, lease: Lease) -> bytes | None:
        return None

    def withdraw(self, handle: BufferHandle) -> None:
        return None

    def close(self) -> None:
        return None


# -- which way ------------------------------------------------------------------------------


def test_the_first_way_that_does_not_refuse() -> None:
    near, far, last = backends = [Memory("near", refuses="too far"), Memory("far"), Memory("last")]
    selector = BackendSelector(backends)
    assert selector.choose(handle_of(), None) is far
    expected = [
        BackendVerdict("near", False, "too far"),
        BackendVerdict("far", True, ""),
        BackendVerdict("last", False, SLOWER),
    ]
    assert selector.explain(handle_of(), None) == expected
    assert (near.tried, last.tried) == (0, 0)


@pytest.mark.parametrize(
    ("system", "device", "local", "words"),
    [
        ("here", "cpu", "cpu", ""),
        ("here", "cpu", None, ""),
        ("there", "cpu", "cpu", "on another host, or in another pid namespace"),
        ("here", "cuda:1-2", "cpu", "on a GPU"),
        ("here", "cpu", "cuda:0", "on a GPU"),
    ],
)
def test_whose_memory_cross_memory_attach_reaches(system: str, device: str, local: str | None, words: str) -> None:
    here = own_mark()
    backend = ProcessMemoryBackend(ActiveTransfers("worker"))
    owner = replace(here, system=here.system if system == "here" else "a boot:pid:[4711]")
    refusal = backend.refusal(replace(handle_of(), process=owner, device=device), local)
    assert words in refusal
    assert bool(words) == bool(refusal)


def test_what_a_way_turned_out_not_to_do_is_kept_for_that_owner_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select_backend, "MOST_FAILURES", 2)
    near, far = backends = [Memory("near"), Memory("far")]
    selector = BackendSelector(backends)
    for pid in (1, 1, 2, 3):
        selector.note(near, handle_of(pid), Unsuitable("it is closed"))
    assert [record.getMessage().count("it is closed") for record in caplog.records] == [1]
    assert [selector.choose(handle_of(pid), None) for pid in (1, 2, 3, 4)] == [near, far, far, near]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.ECONNREFUSED])
def test_a_way_is_tried_again_once_what_was_in_its_way_may_have_passed(number: int) -> None:
    near, far = backends = [Memory("near"), Memory("far")]
    now = 100.0
    selector = BackendSelector(backends, clock=lambda: now)
    selector.note(near, handle_of(), Unsuitable("there was no room", OSError(number, "no room")))
    assert selector.choose(handle_of(), None) is far
    assert selector.explain(handle_of(), None)[0].reason == "there was no room (tried again after 10 s)"
    now += 10.0
    assert selector.choose(handle_of(), None) is near


def test_ways_that_are_left_out() -> None:
    backends = [Memory("near"), Memory("far", refuses="too far")]
    selector = BackendSelector(backends, ["far"])
    with pytest.raises(TransferError, match=f"no backend reaches .*\n    near: {EXCLUDED}\n    far: too far"):
        selector.choose(handle_of(), None)
    with pytest.raises(ValueError, match="unknown names: fat; valid: near, far"):
        BackendSelector(backends, ["fat"])


def test_a_handle_of_another_run_leads_nowhere() -> None:
    """It was pickled to a file; processes of this run have the same names."""
    selector = BackendSelector([Memory("near")], run="new")
    with pytest.raises(TransferError, match=r"belongs to another run \(old; this is new\)"):
        selector.choose(handle_of(run="old"), None)
    assert selector.explain(handle_of(run="old"), None) == []
    assert selector.choose(handle_of(run="new"), None).name == "near"


def test_the_ways_as_text() -> None:
    verdicts = [BackendVerdict("same process", False, "no"), BackendVerdict("message", True, "")]
    lines = explain(handle_of(size=2048, is_writable=False), "on this host", verdicts).splitlines()
    assert lines[0] == "2.0 kB of <Owner o> on owner, on this host: memory of the CPU, read-only"
    assert lines[1] == "   same process  no"
    assert lines[2].startswith("-> message       the owner's process sends")
    assert "memory of GPU 1-2" in explain(handle_of(device="cuda:1-2"), "there", verdicts)


# -- carrying out -------------------------------------------------------------------------------


class Clock:
    """Calls back when told to."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], object]]] = []

    def later(self, seconds: float, callback: Callable[[], object]) -> None:
        self.due.append((seconds, callback))

    def tick(self) -> None:
        due, self.due = self.due, []
        for _, callback in due:
            callback()


class Plane:
    """Transfers by some ways, and what was told of them."""

    def __init__(self, *backends: Memory) -> None:
        self.clock = Clock()
        self.recorder = Recorder(10)
        self.done: list[tuple[int, str, bool]] = []
        self.transfers = Transfers(BackendSelector(backends), self.clock.later, self.recorder, self._note)

    def _note(self, job: TransferJob, backend: str, seconds: float, is_write: bool) -> None:
        self.done.append((job.local.size, backend, is_write))

    def start(self, size: int = 8, seconds: float = 60, *, is_write: bool = False, **options: Any) -> Any:
        data = bytearray(b"x" * size)
        job = TransferJob(handle_of(size=size), 0, local_memory(data, "data"), Deadline(seconds))
        return self.transfers.start(job, is_write=is_write, **options)


@pytest.fixture
def plane() -> Iterator[Callable[..., Plane]]:
    made: list[Plane] = []

    def make(*backends: Memory) -> Plane:
        made.append(Plane(*backends))
        return made[-1]

    yield make
    for each in made:
        each.transfers.close()


@pytest.mark.parametrize(
    ("size", "is_immediate", "is_here"), [(8, True, True), (INLINE_BYTES + 1, True, False), (8, False, False)]
)
def test_short_transfers_run_on_the_calling_thread_unless_it_would_wait(
    plane: Callable[..., Plane], size: int, is_immediate: bool, is_here: bool
) -> None:
    backend = Memory("near", is_immediate=is_immediate)
    used = plane(backend)
    future = used.start(size, is_write=True)
    assert future.done() or not is_here
    assert future.get(PATIENCE) is None
    assert (backend.threads == [threading.current_thread().name]) is is_here
    assert backend.data[:size] == b"x" * size
    assert used.done == [(size, "near", True)]
    assert [span.kind for span in used.recorder.recording(0).spans] == ["transfer"]


def test_an_unsuitable_way_is_tried_once(plane: Callable[..., Plane]) -> None:
    near, far = Memory("near", unsuitable="not allowed"), Memory("far", is_immediate=False)
    used = plane(near, far)
    for _ in range(2):
        used.start().get(PATIENCE)
    assert (near.tried, far.tried) == (1, 2)
    assert near.threads == [threading.current_thread().name]
    assert near.threads[0] not in far.threads  # which may make its caller wait


def test_no_way(plane: Callable[..., Plane]) -> None:
    with pytest.raises(TransferError, match="no backend reaches"):
        plane(Memory("near", refuses="too far")).start().get(PATIENCE)


@pytest.mark.parametrize("size", [8, 2 * INLINE_BYTES])
def test_a_checksum_detects_writes_during_a_transfer(plane: Callable[..., Plane], size: int) -> None:
    backend = Memory("near")
    used = plane(backend)
    used.start(size, checksum=True).get(PATIENCE)

    def change(job: TransferJob) -> None:
        backend.data[size - 1] += 1

    backend.before = change
    with pytest.raises(ChecksumMismatch, match="written to during"):
        used.start(size, checksum=True).get(PATIENCE)


@pytest.fixture
def stuck() -> Iterator[Memory]:
    """A way that never gets there, until the test is over."""
    backend, over = Memory("stuck", is_immediate=False), threading.Event()

    def wait(job: TransferJob) -> None:
        entered.put(job)
        over.wait(PATIENCE)

    entered: queue.SimpleQueue[TransferJob] = queue.SimpleQueue()
    backend.before = wait
    backend.entered = entered  # type: ignore[attr-defined]
    yield backend
    over.set()


def test_a_transfer_that_does_not_end_fails_in_its_time_and_one_callback_is_due(
    plane: Callable[..., Plane], stuck: Memory
) -> None:
    used = plane(stuck)
    late = used.start(seconds=0)
    others = [used.start() for _ in range(3)]
    assert len(used.clock.due) == 1
    threading.Event().wait(0.11)  # the time of grace
    used.clock.tick()
    with pytest.raises(TransferTimeout, match="reading 8 bytes from the buffer of <Owner o> on owner was not done"):
        late.get(PATIENCE)
    assert not any(future.done() for future in others)
    assert [seconds > 50 for seconds, _ in used.clock.due] == [True]


def test_a_transfer_that_is_cancelled_ends_after_its_present_piece(plane: Callable[..., Plane], stuck: Memory) -> None:
    future = plane(stuck).start()
    job = stuck.entered.get(timeout=PATIENCE)  # type: ignore[attr-defined]
    assert future.cancel()
    with pytest.raises(CallCancelled, match="was cancelled"):
        future.get(PATIENCE)
    with pytest.raises(CallCancelled):
        job.deadline.check(str)
    assert not future.cancel()


def test_callers_get_an_error_when_the_process_leaves_its_run(plane: Callable[..., Plane], stuck: Memory) -> None:
    used = plane(stuck)
    future = used.start()
    stuck.entered.get(timeout=PATIENCE)  # type: ignore[attr-defined]
    used.transfers.close()
    for each in (future, used.start()):
        with pytest.raises(TransferError, match="has left the run"):
            each.get(PATIENCE)


# -- parts ------------------------------------------------------------------------------------------


def test_threads_are_made_as_they_are_needed_and_no_more_than_that() -> None:
    threads, gate, entered = Threads(2, "test"), threading.Event(), queue.SimpleQueue[str]()

    def work() -> None:
        entered.put(threading.current_thread().name)
        gate.wait(PATIENCE)

    for _ in range(3):
        threads.do(work)
    for _ in range(2):
        entered.get(timeout=PATIENCE)
    assert entered.empty()  # the third waits for one of both
    gate.set()
    entered.get(timeout=PATIENCE)
    threads.close()
    threads.do(work)
    assert entered.empty()


def test_a_follower_of_a_transfer_is_notified_of_its_end_and_not_of_each_piece() -> None:
    reports: list[tuple[int, int]] = []
    follower = TransferProgress(lambda done, total: reports.append((done, total)), 1000)
    for _ in range(1000):
        follower.moved(1)
    assert reports[0] == (1, 1000)
    assert reports[-1] == (1000, 1000)
    assert len(reports) < 100
