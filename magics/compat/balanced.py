"""ipyparallel's load-balanced view, on the scheduler of `mesh.map`: each task runs on the next free rank.

joblib can use such a view as its backend.
"""

from __future__ import annotations

import concurrent.futures
import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshbook.magics.cells.maps import CellItemRunner
from meshbook.magics.compat.answers import AsyncMapResult, AsyncResult
from meshbook.magics.compat.calls import ViewCall, wait_for
from meshbook.magics.compat.functions import Function, name_of
from meshbook.magics.compat.task_dependencies import Condition
from meshbook.magics.compat.views import Targets, View
from meshbook.magics.variables.split import split
from meshbook.runtime.actor.future import Future
from meshbook.runtime.cells.dependencies import ImpossibleDependency
from meshbook.runtime.cells.function_calls import Each, RecordedFunction, RecordedResult
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.errors import CallCancelled, ItemError
from meshbook.runtime.mesh.scheduling import Scheduler

if TYPE_CHECKING:
    from meshbook.magics.compat.cluster import Client


_UNMET = "UnmetDependency"


class LoadBalancedView(View):
    """A view of some ranks; each takes the next task when it is free.

    `retries`: how often a failed task is retried. `after`: results, or a `Dependency` on them, that a task needs before
    it begins. `follow`: the same, and it must run on their rank. A task fails with ImpossibleDependency if such a call
    fails.
    """

    _flag_names = (*View._flag_names, "follow", "after", "timeout", "retries")
    follow: Any = None
    after: Any = None
    timeout: float | None = None
    retries = 0

    def __init__(self, client: Client, targets: Targets = None, **flags: Any) -> None:
        super().__init__(client, targets, **flags)
        self._schedulers: dict[tuple[int, ...], Scheduler] = {}
        self._lock = threading.Lock()  # guards the schedulers

    def apply_async(self, function: Function, /, *arguments: Any, **keywords: Any) -> AsyncResult:
        """Call the function on the next free rank; returns at once."""
        call = ViewCall(self.client, label=self.label)
        task = _ViewTask(self, call, RecordedFunction(function), (arguments, keywords))
        task.begin_once(Condition.of(self.after, self.client.calls_of), Condition.of(self.follow, self.client.calls_of))
        return AsyncResult(
            *([call], name_of(function), lambda values: values[0]), single=True, abort=task.abort, client=self.client
        )

    def map(
        self,
        function: Function,
        *sequences: Any,
        block: bool | None = None,
        chunksize: int | None = None,
        ordered: bool = True,
        return_exceptions: bool = False,
        label: str | None = None,
    ) -> Any:
        """Call the function with each element; returns the results in order, or with `ordered=False` as they arrive."""
        columns = [sequence if hasattr(sequence, "__len__") else list(sequence) for sequence in sequences]
        if not columns:
            raise ValueError("map() needs at least one sequence")
        rows = list(zip(*columns, strict=False))
        tasks, sizes, called, size = rows, [1] * len(rows), function, chunksize or 1
        if is_chunked := size > 1:  # one task for each chunk
            chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
            tasks, sizes, called = (
                [tuple(zip(*each, strict=True)) for each in chunks],
                [*map(len, chunks)],
                Each(function),
            )
        scheduler = self._make_scheduler(self.ranks, 1 if is_chunked else chunksize)
        calls, numbers = self._submit_all(scheduler, RecordedFunction(called), tasks, label, sizes)
        result = AsyncMapResult(
            *(calls, name_of(function)),
            ordered=ordered,
            chunked=is_chunked,
            return_exceptions=return_exceptions,
            abort=lambda: scheduler.cancel(numbers),
            client=self.client,
        )
        return self.wait_if_blocking(result, block)

    def call_with_pieces(self, function: Function, sequences: Sequence[Any], chunksize: int | None) -> AsyncResult:
        size = chunksize or 1
        count = -(-len(sequences[0]) // size)
        pieces = [split(sequence, count) for sequence in sequences]
        rows = list(zip(*pieces, strict=True))
        scheduler = self._make_scheduler(self.ranks, 1)
        calls, numbers = self._submit_all(scheduler, RecordedFunction(function), rows, None, [1] * len(rows))
        return AsyncMapResult(
            *(calls, name_of(function)), chunked=True, abort=lambda: scheduler.cancel(numbers), client=self.client
        )

    def _submit_all(
        self,
        scheduler: Scheduler,
        function: RecordedFunction,
        rows: Sequence[tuple[Any, ...]],
        label: str | None,
        sizes: Sequence[int],
    ) -> tuple[list[ViewCall], list[int]]:
        submitted = time.time()  # before the ranks can begin
        try:
            numbers, futures = scheduler.submit(scheduler.add_function(function), [(row, {}) for row in rows])
        except BaseException:
            scheduler.close()
            raise
        calls = [ViewCall(self.client, size=size, label=label or self.label, submitted=submitted) for size in sizes]
        for number, call, future in zip(numbers, calls, futures, strict=True):
            call.abort = functools.partial(scheduler.cancel, [number])
            call.follow(future, functools.partial(_rank_of, scheduler, number, future))
        return calls, numbers

    def imap(
        self,
        function: Function,
        *sequences: Any,
        ordered: bool = True,
        max_outstanding: int | str = "auto",
        return_exceptions: bool = False,
    ) -> LazyMapIterator:
        """Yield the results one by one. Items are taken only as ranks become free: the sequences may be infinite.

        `max_outstanding`: the limit of pending tasks, by default one for each rank; 0: no limit.
        """
        most = len(self) if max_outstanding == "auto" else int(max_outstanding)
        return LazyMapIterator(self, function, zip(*sequences, strict=False), most, ordered, return_exceptions)

    def register_joblib_backend(self, name: str = "ipyparallel", make_default: bool = False) -> None:
        """Let joblib run its tasks on this view: `with joblib.parallel_backend("ipyparallel")`."""
        register_joblib(lambda: self, name, make_default=make_default)

    # -- schedulers ------------------------------------------------------------------

    def scheduler_of(self, ranks: Sequence[int]) -> Scheduler:
        """Return the scheduler of single tasks on these ranks."""
        with self._lock:
            known = self._schedulers.get(tuple(ranks))
            if known is None:
                known = self._schedulers[tuple(ranks)] = self._make_scheduler(ranks, 1, keeps=True)
            return known

    def _make_scheduler(self, ranks: Sequence[int], chunksize: int | None, *, keeps: bool = False) -> Scheduler:
        scheduler = Scheduler(CellItemRunner(self.client.mesh, ranks, "tasks"), "tasks", chunksize, keeps=keeps)
        self.client.schedulers.add(scheduler)
        return scheduler


class _ViewTask:
    """A single task: it begins after others, is retried, and moves to another rank if one lacks a dependency."""

    def __init__(self, view: LoadBalancedView, call: ViewCall, function: RecordedFunction, arguments: Any) -> None:
        self._view = view
        self._call = call
        self._function = function
        self._arguments = arguments
        self._ranks = view.ranks
        self._retries = view.retries
        self._is_aborted = False
        self._cancel: Callable[[], object] = lambda: None
        call.abort = self.abort

    def begin_once(self, after: Condition, follow: Condition) -> None:
        """Submit once both conditions are met, on a rank of the second one; fail if one cannot be met any more."""
        undecided = [None]  # the thread that pops it continues

        def look(_: Any = None) -> None:
            try:
                if not (after.is_met() and follow.is_met()):
                    return
                ranks = follow.ranks(self._ranks)
            except ImpossibleDependency as error:
                if _pop(undecided):
                    self._call.refuse(error)
                return
            if _pop(undecided):
                self._ranks = ranks
                self._submit()

        for call in {*after.calls, *follow.calls}:
            call.add_done_callback(look)
        look()

    def abort(self) -> None:
        self._is_aborted = True
        self._cancel()

    def _submit(self) -> None:
        if self._is_aborted:
            self._call.follow(Future.failed(CallCancelled("the task was aborted before it started")))
            return
        try:
            scheduler = self._view.scheduler_of(self._ranks)
            (number,), (future,) = scheduler.submit(scheduler.add_function(self._function), [self._arguments])
        except Exception as error:
            if not self._call.done() and self._retries == self._view.retries:
                self._call.client.note_end(self._call)
                raise
            self._call.follow(Future.failed(error))
            return
        self._cancel = functools.partial(scheduler.cancel, [number])
        future.when_done(lambda: self._call.client.resolve(functools.partial(self._look, scheduler, number, future)))

    def _look(self, scheduler: Scheduler, number: int, future: Future[Any]) -> None:
        """Settle the call, or retry the task; on a thread of the client's."""
        failure = _failure_of(future)
        rank = _rank_of(scheduler, number, future)
        others = [each for each in self._ranks if each != rank]
        if failure == _UNMET and others:
            self._ranks = others
            self._submit()
        elif failure and failure != _UNMET and self._retries > 0 and not self._is_aborted:
            self._retries -= 1
            self._submit()
        else:
            self._call.take(future, lambda: rank)
            scheduler.forget(number)


class LazyMapIterator(Iterator[Any]):
    """The results of `imap`; `cancel()` stops taking items."""

    def __init__(
        self,
        view: LoadBalancedView,
        function: Function,
        rows: Iterable[tuple[Any, ...]],
        most: int,
        ordered: bool,
        return_exceptions: bool,
    ) -> None:
        self._view = view
        self._function = function
        self._rows = iter(rows)
        self._most = most
        self._ordered = ordered
        self._return_exceptions = return_exceptions
        self._open: deque[AsyncResult] = deque()
        self._is_over = False
        self._fill()

    def cancel(self) -> None:
        """Stop taking items."""
        self._is_over = True

    def __next__(self) -> Any:
        self._fill()
        if not self._open:
            raise StopIteration
        if self._ordered:
            ready = self._open.popleft()
        else:
            done, _ = wait_for(self._open, return_when=concurrent.futures.FIRST_COMPLETED)
            ready = next(each for each in self._open if each in done)
            self._open.remove(ready)
        ready.wait()
        self._fill()
        return ready.get(return_exceptions=self._return_exceptions)

    def _fill(self) -> None:
        while not self._is_over and (not self._most or sum(not each.done() for each in self._open) < self._most):
            try:
                row = next(self._rows)
            except StopIteration:
                self._is_over = True
                return
            self._open.append(self._view.apply_async(self._function, *row))


def _pop(tokens: list[None]) -> bool:
    """Take the only token; False if another thread has it."""
    try:
        tokens.pop()
    except IndexError:
        return False
    return True


def _rank_of(scheduler: Scheduler, number: int, future: Future[Any]) -> int | None:
    """Return the rank that a task ran on."""
    if (ran := scheduler.runs.get(number)) is not None:
        return ran.rank
    error = future.exception()
    return error.rank if isinstance(error, ItemError) else None


def _failure_of(future: Future[Any]) -> str:
    """Return the name of the error that a task ended with; empty if it has a value."""
    error = future.exception()
    if error is not None:
        return error.type_name if isinstance(error, ItemError) else type(error).__name__
    answer = future.get()
    failed = answer.answer if isinstance(answer, RecordedResult) else None
    return failed.type_name if isinstance(failed, RankError) else ""


def count_open(schedulers: Iterable[Scheduler]) -> tuple[Mapping[int, int], int]:
    """Return how many tasks each rank has, and how many are not assigned yet."""
    found: dict[int, int] = {}
    unassigned = 0
    for scheduler in schedulers:
        unassigned += scheduler.unassigned
        for rank, count in scheduler.load.items():
            found[rank] = found.get(rank, 0) + count
    return found, unassigned


def register_joblib(find_view: Callable[[], LoadBalancedView], name: str, *, make_default: bool) -> None:
    """Register a joblib backend under this name; joblib's first use calls `find_view`."""
    # weight: few sessions use joblib
    from joblib.parallel import AutoBatchingMixin, ParallelBackendBase, register_parallel_backend

    class Backend(AutoBatchingMixin, ParallelBackendBase):
        """Runs joblib's tasks on ranks."""

        def __init__(self, view: LoadBalancedView | None = None, **options: Any) -> None:
            super().__init__(**options)
            self._view = view or find_view()

        def effective_n_jobs(self, n_jobs: int) -> int:
            """Return the number of ranks."""
            return len(self._view)

        def submit(self, function: Any, callback: Callable[[Any], object] | None = None) -> Any:
            """Run a batch on the next free rank."""
            result = self._view.apply_async(function)
            if callback is not None:
                result.add_done_callback(lambda done: callback(done.result()))
            return result

        apply_async = submit

    register_parallel_backend(name, Backend, make_default=make_default)
