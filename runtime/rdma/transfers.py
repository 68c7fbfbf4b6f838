"""Transfers as they are carried out: at once where they are short, else on a thread; in any case within their time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import TransferTimeout
from meshbook.runtime.rdma.chooser import Chooser
from meshbook.runtime.rdma.ways import Deadline, Job, Unsuitable, Way

T = TypeVar("T")
AT_ONCE = 1 << 20  # bytes that are moved by who asks for it: to hand them over would take longer
THREADS = 8
Later = Callable[[float, Callable[[], object]], None]
Done = Callable[[Job, str, float, bool], None]  # a transfer, by which way, in how many seconds, whether it was a write


class Transfers:
    """Carries out jobs, and tells `done` of each that was.

    `later` calls back after so many seconds, for transfers that a way never returns from.
    """

    def __init__(self, chooser: Chooser, later: Later, done: Done) -> None:
        self._chooser = chooser
        self._later = later
        self._tell_done = done
        self._lock = threading.Lock()  # guards the next
        self._threads: ThreadPoolExecutor | None = None

    def start(self, job: Job, *, is_write: bool) -> Future[None]:
        """Move the bytes of a job by the best way. The future fails with a TransferError."""
        if job.local.size <= AT_ONCE:
            return _settled(lambda: self.move(job, is_write=is_write))

        def move() -> None:
            self.move(job, is_write=is_write)

        return self.run(move, job.deadline, lambda: f"moving {job.local.size:,} bytes")

    def run(self, work: Callable[[], T], deadline: Deadline, what: Callable[[], str]) -> Future[T]:
        """Do something on a thread; the future fails when its time has passed, whether or not that ever returns."""
        future: Future[T] = Future.pending()

        def do() -> None:
            try:
                value = work()
            except BaseException as error:
                future.fail(error)
            else:
                future.resolve(lambda: value)

        self._executor().submit(do)
        late = f"{what()} was not done after {deadline.seconds:g} s"
        self._later(deadline.left + 0.1, lambda: future.fail(TransferTimeout(late)))
        return future

    def move(self, job: Job, *, is_write: bool) -> Way:
        """Move the bytes now; which way they went."""
        begun = time.perf_counter()
        while True:
            way = self._chooser.choose(job.handle, job.local.device)
            try:
                (way.write if is_write else way.read)(job)
            except Unsuitable as why:
                self._chooser.note(way, job.handle, str(why))
            else:
                self._tell_done(job, way.name, time.perf_counter() - begun, is_write)
                return way

    def _executor(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="meshbook transfer")
            return self._threads

    def close(self) -> None:
        with self._lock:
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)


def _settled(work: Callable[[], object]) -> Future[None]:
    try:
        work()
    except Exception as error:
        return Future.failed(error)
    return Future.completed(None)
