"""Execution of transfers: short ones on the calling thread, others on a thread of a pool, all within a deadline.

A transfer is verified by reading the bytes a second time: a checksum by the owner would require its participation. So
the process that moved the bytes reads them again from the owner's memory, in small pieces, and compares: as certain as
a checksum, for the price of a second read. It detects writes to either side between the transfer and the second read,
and bytes lost on the way. It does not detect later writes by the owner.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import threading
import time
from collections.abc import Callable
from threading import get_ident
from time import monotonic
from typing import Any, Generic, TypeVar

from meshbook.runtime.actor.context import current_origin
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import CallCancelled, ChecksumMismatch, TransferError, TransferTimeout
from meshbook.runtime.memory import pinned
from meshbook.runtime.memory.cuda import in_background
from meshbook.runtime.memory.local_memory import CPU, local_memory
from meshbook.runtime.memory.pages import want_large
from meshbook.runtime.rdma.backends import Deadline, Transfer, TransferJob, Unsuitable
from meshbook.runtime.rdma.select_backend import BackendSelector
from meshbook.runtime.rdma.staging import StagedTransfer
from meshbook.runtime.rdma.thread_pool import Threads
from meshbook.runtime.telemetry.spans import Recorder, now

T = TypeVar("T")
INLINE_BYTES = 1 << 20  # bytes that the calling thread moves itself: handing them over would take longer
THREADS = 32  # more than a host needs, so that a few stuck transfers do not delay the others
# Seconds that a backend gets to notice the deadline by itself: its error reports how far it came.
GRACE_SECONDS = 0.1
PIECE = 1 << 20  # bytes compared at a time: they stay in the CPU cache
INTERVAL = 0.1  # minimum seconds between two progress reports
LAST_RESORT = "message"  # the backend that reaches any memory, but is not one-sided
Progress = Callable[[int, int], object]  # bytes moved so far, and the total
Later = Callable[[float, Callable[[], object]], None]
Done = Callable[
    [TransferJob, str, float, bool], None
]  # called with the job, the backend's name, the seconds it took, and whether it was a write


class Transfers:
    """Executes jobs, and calls `done` after each successful one, on the thread that executed it.

    `later` calls back after a number of seconds, for transfers whose backend never returns.
    """

    def __init__(self, selector: BackendSelector, later: Later, recorder: Recorder, done: Done) -> None:
        self._selector = selector
        self._recorder = recorder
        self._threads = Threads(THREADS, "meshbook transfer")
        self._watch = TransferWatch(later)
        self._done = done

    def start(self, job: TransferJob, *, is_write: bool, checksum: bool = False) -> Future[None]:
        """Move the bytes of a job by the best backend. The future fails with a TransferError."""

        def move() -> None:
            self.move(job, is_write=is_write, checksum=checksum)

        def what() -> str:
            verb, prep = ("writing", "to") if is_write else ("reading", "from")
            return f"{verb} {job.local.size:,} bytes {prep} the buffer of {job.handle.actor} on {job.handle.owner.node}"

        try:
            while self._is_short(job, backend := self._choose(job)):
                if self._try(backend, job, is_write=is_write, checksum=checksum):
                    return Future.completed(None)
        except Exception as error:  # returned in the future, as an error from another thread is
            return Future.failed(error)
        return self.run(move, job.deadline, what)

    def is_short(self, job: TransferJob) -> bool:
        """Return whether the calling thread should do this transfer. Raises TransferError if no backend reaches it."""
        return self._is_short(job, self._selector.choose(job.handle, job.local.device))

    def _is_short(self, job: TransferJob, backend: Transfer) -> bool:
        # A copy from or to a GPU waits for its work, and a graph that the calling thread captures would contain it.
        return job.local.size <= INLINE_BYTES and backend.is_immediate and not job.is_on_gpu

    def _choose(self, job: TransferJob) -> Transfer:
        backend = self._selector.choose(job.handle, job.local.device)
        if backend.name != LAST_RESORT or job.local.device == CPU or job.handle.is_on_gpu:
            return backend
        reaches_host = self._selector.choose(job.handle, CPU)
        return backend if reaches_host.name == LAST_RESORT else StagedTransfer(pinned.PIECES, reaches_host)

    def run(self, work: Callable[[], T], deadline: Deadline, what: Callable[[], str]) -> Future[T]:
        """Run `work` on a thread. The future fails at the deadline, even if `work` never returns.

        Cancelling the future cancels the deadline, which backends check between two pieces.
        """
        task: TransferTask[T] = TransferTask(deadline, what)
        here = contextvars.copy_context()

        def do() -> None:
            try:
                value = here.run(work)
            except BaseException as error:
                task.future.fail(error)
            else:
                task.future.resolve(lambda: value)
            self._watch.remove(task)

        self._watch.add(task)
        self._threads.do(do)
        return task.future

    def move(self, job: TransferJob, *, is_write: bool, checksum: bool = False) -> Transfer:
        """Move the bytes on this thread, and return the backend that was used."""
        if not is_write and job.local.device == CPU:
            want_large(job.local.address, job.local.size)
        with in_background() if job.is_on_gpu else contextlib.nullcontext():
            while not self._try(backend := self._choose(job), job, is_write=is_write, checksum=checksum):
                pass  # try the next backend
        return backend

    def _try(self, backend: Transfer, job: TransferJob, *, is_write: bool, checksum: bool) -> bool:
        """Try this backend; return False if it is unsuitable."""
        start = now()
        try:
            (backend.write if is_write else backend.read)(job)
        except Unsuitable as error:
            self._selector.note(backend, job.handle, error)
            return False
        self._note(job, backend, start, is_write=is_write)
        if checksum and job.local.size:
            compare(job, backend)
        return True

    def _note(self, job: TransferJob, backend: Transfer, start: int, *, is_write: bool) -> None:
        end = now()
        if self._recorder.on:
            name = "write to a buffer" if is_write else "read of a buffer"
            link = job.handle.owner.node, job.local.size, backend.name
            self._recorder.add(("transfer", start, end, get_ident(), name, current_origin(), *link))
        self._done(job, backend.name, (end - start) / 1e9, is_write)

    def close(self) -> None:
        """Fail all waiting futures; transfers under way end after their current piece."""
        self._watch.close(lambda what: TransferError(f"{what} was cancelled: this process has left the run"))
        self._threads.close()


class TransferTask(Generic[T]):
    """Work on a thread, in the form of the call whose reply its future holds."""

    helper = None

    def __init__(self, deadline: Deadline, what: Callable[[], str]) -> None:
        self.deadline = deadline
        self.due = time.monotonic() + deadline.left + GRACE_SECONDS
        self.what = what
        self.future: Future[T] = Future.pending()
        self.future.set_pending_call(self, None)

    def cancel(self, index: int | None) -> bool:
        self.fail(CallCancelled(f"{self.what()} was cancelled"))
        return True

    def owing(self, index: int | None) -> list[object]:
        return []  # empty: this process moves the bytes itself

    def describe(self, index: int | None) -> str:
        return self.what()

    def fail(self, why: BaseException) -> None:
        self.deadline.cancel(why)
        self.future.fail(why)


class TransferWatch:
    """Fails futures at their deadline if nothing else does. At most one timer is due at a time."""

    def __init__(self, later: Later) -> None:
        self._later = later
        self._lock = threading.Lock()  # guards all of these
        self._tasks: set[TransferTask[Any]] = set()
        self._next = float("inf")  # when the next check is due
        self._closed: Callable[[str], BaseException] | None = None

    def add(self, task: TransferTask[Any]) -> None:
        with self._lock:
            self._tasks.add(task)
            is_sooner = task.due < self._next
            if is_sooner:
                self._next = task.due
        if self._closed is not None:
            task.fail(self._closed(task.what()))
        elif is_sooner:
            self._later(task.due - time.monotonic(), self._check)

    def remove(self, task: TransferTask[Any]) -> None:
        with self._lock:
            self._tasks.discard(task)

    def _check(self) -> None:
        present = time.monotonic()
        with self._lock:
            late = [task for task in self._tasks if task.due <= present]
            self._tasks.difference_update(late)
            self._next = min((task.due for task in self._tasks), default=float("inf"))
            pause = self._next - present
            is_needed = bool(self._tasks)  # otherwise the next `add` schedules the check
        for task in late:
            task.fail(TransferTimeout(f"{task.what()} was not done after {task.deadline.seconds:g} s"))
        if is_needed:
            self._later(pause, self._check)

    def close(self, why: Callable[[str], BaseException]) -> None:
        with self._lock:
            self._closed = why
            tasks = list(self._tasks)
        for task in tasks:
            task.fail(why(task.what()))


def compare(job: TransferJob, backend: Transfer) -> None:
    """Raise ChecksumMismatch if the bytes of a finished transfer differ now."""
    again = local_memory(bytearray(min(PIECE, job.local.size)), "a piece")
    for start in range(0, job.local.size, PIECE):
        size = min(PIECE, job.local.size - start)
        piece = again.part(0, size)
        backend.read(TransferJob(job.handle, job.offset + start, piece, job.deadline))
        ours = job.local.part(start, size)
        if ours.device == CPU:
            is_same = _memcmp(piece.address, ours.address, piece.size) == 0
        else:
            is_same = piece.view() == ours.tensor.cpu().numpy().data
        if not is_same:
            first = job.offset + start
            raise ChecksumMismatch(
                f"bytes {first:,} to {first + size:,} of the buffer of {job.handle.actor} differ from those here: they "
                "were written to during the transfer. Synchronize the accesses, or try again"
            )


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_memcmp.restype = ctypes.c_int


class TransferProgress:
    """Calls `report` at intervals and at the end, on the thread that moves the bytes."""

    def __init__(self, report: Progress, total: int) -> None:
        self._report = report
        self._total = total
        self._done = 0
        self._next = 0.0  # so the first piece is reported

    def moved(self, count: int) -> None:
        """Add `count` moved bytes. An exception of the user's function propagates and ends the transfer."""
        # A backend that fails half-way leaves all bytes to the next one.
        self._done = min(self._done + count, self._total)
        is_last = self._done == self._total
        if is_last or monotonic() >= self._next:
            self._next = monotonic() + INTERVAL
            self._report(self._done, self._total)
