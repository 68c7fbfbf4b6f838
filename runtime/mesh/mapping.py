"""`procs.map(f, items)`: run each item on the next free rank, with a future for each.

MapResult <- Scheduler -> Balancer (pure: assigns items to ranks)
                │
                └─> Runner: sends requests to ranks (`ActorRunner`; a notebook uses its cell actors)
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import CallError
from meshbook.runtime.mesh.scheduling import Arguments, ItemTiming, Scheduler

R = TypeVar("R")
Chunksize: TypeAlias = int | Literal["auto"]
MOST_NAMED = 10  # failed items that an error lists


class MapResult(Generic[R]):
    """The results of a map: a future for each item.

    Iterate over it for the values: in the order of the items or, with `ordered=False`, in order of completion. An item
    that failed raises an ItemError at its turn, with the item, rank and host. The iteration can continue with the next
    item, and the other items run in any case. Ctrl-C during a wait cancels the items that have not begun, as `cancel()`
    does.
    """

    def __init__(
        self, scheduler: Scheduler, numbers: Sequence[int], futures: list[Future[R]], *, ordered: bool
    ) -> None:
        self._futures = futures
        self.is_read = False  # whether anything has asked for its values or errors
        self._scheduler = scheduler
        self._numbers = numbers
        self._ordered = ordered
        self._left = itertools.count(len(futures) - 1, -1)
        self._finished: Future[None] = Future.pending()
        if not futures:
            self._finished.resolve(lambda: None)
        for future in futures:
            future.when_done(self._count)

    def _count(self) -> None:
        if next(self._left) == 0:
            self._finished.resolve(lambda: None)

    @property
    def futures(self) -> list[Future[R]]:
        """The future of each item, in their order."""
        self.is_read = True
        return self._futures

    @property
    def name(self) -> str:
        """The name of the function."""
        return self._scheduler.name

    def __len__(self) -> int:
        return len(self._futures)

    @property
    def progress(self) -> int:
        """The number of settled items: done, failed or cancelled."""
        return sum(future.done() for future in self._futures)

    def done(self) -> bool:
        """Return whether all items are settled."""
        return self._finished.done()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once all items are settled: from the thread that settles the last one, or at once."""
        self._finished.when_done(callback)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all items are settled, at most `timeout` seconds; return whether they are."""
        with self._cancelled_by_interrupt():
            try:
                self._finished.get(timeout)
            except TimeoutError:
                return False
        return True

    def get(self, timeout: float | None = None) -> list[R]:
        """Wait for all items (at most `timeout` seconds, else TimeoutError) and return the values in their order.

        Raises the error of the first item that failed. Its `failures` holds the errors of all items by position.
        """
        self.is_read = True
        with self._cancelled_by_interrupt():
            self._finished.get(timeout)
        return self._values()

    result = get

    def __await__(self) -> Generator[Any, None, list[R]]:
        """Wait like `get`, for `await`. A cancelled await cancels the items that have not begun."""
        self.is_read = True
        try:
            yield from self._finished.__await__()
        except BaseException:
            self.cancel()
            raise
        return self._values()

    def _values(self) -> list[R]:
        failures = self.errors
        if not failures:
            return [future.get() for future in self._futures]
        first, *others = failures
        error = failures[first]
        if isinstance(error, CallError):
            error.failures = failures
        if others:
            listed = ", ".join(map(str, others[:MOST_NAMED])) + (", …" if len(others) > MOST_NAMED else "")
            note = f"{len(failures)} of {len(self)} items have no value; the others: {listed}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        return [future.get() for future in self._futures]

    @property
    def errors(self) -> dict[int, BaseException]:
        """The errors of the items that have failed so far, by position."""
        self.is_read = True
        return self.failures()

    def failures(self) -> dict[int, BaseException]:
        """Return the errors so far, by position, as `errors` does; they still count as unread."""
        settled = ((item, future.exception()) for item, future in enumerate(self._futures) if future.done())
        return {item: error for item, error in settled if error is not None}

    @property
    def handed_out_again(self) -> dict[int, tuple[int, ...]]:
        """The items that were handed out again, by position, with the ranks that died while they had them.

        Only these items may have run twice, or partially.
        """
        again = self._scheduler.again
        return {item: tuple(again[number]) for item, number in enumerate(self._numbers) if number in again}

    @property
    def runs(self) -> list[ItemTiming | None]:
        """Where and when each item ran; None for an item that has not run or has no result."""
        return [self._scheduler.runs.get(number) for number in self._numbers]

    def __iter__(self) -> Iterator[R]:
        """Iterate over the values, in order or as they arrive."""
        return _Values(self, self.futures if self._ordered else self.as_completed())

    def as_completed(self) -> Iterator[Future[R]]:
        """Iterate over the futures in the order in which their items are settled."""
        slots: list[Future[Future[R]]] = [Future.pending() for _ in self.futures]
        free = itertools.count()

        def note(future: Future[R]) -> None:
            slots[next(free)].resolve(lambda: future)

        for future in self._futures:
            future.when_done(functools.partial(note, future))
        for slot in slots:
            with self._cancelled_by_interrupt():
                settled = slot.get()
            yield settled

    def cancel(self) -> None:
        """Cancel the items that have not begun: their futures raise CallCancelled. Running items finish.

        Items that were already handed out to a rank are withdrawn first, so their futures are settled a little later.
        """
        self._scheduler.cancel(self._numbers)

    @contextlib.contextmanager
    def _cancelled_by_interrupt(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            self.cancel()
            raise

    def __repr__(self) -> str:
        failed = f", {count} failed" if (count := len(self.failures())) else ""
        return f"<MapResult of {self.name}: {self.progress} of {len(self)} items done{failed}>"


class _Values(Iterator[R]):
    """Iterator over the values of futures. Not a generator: a generator would end at the first item that fails."""

    def __init__(self, result: MapResult[R], futures: Iterable[Future[R]]) -> None:
        self._result = result
        self._futures = iter(futures)

    def __next__(self) -> R:
        future = next(self._futures)
        with self._result._cancelled_by_interrupt():
            return future.get()


def begin_map(
    function: Callable[..., R], sequences: Sequence[Iterable[Any]], begin: Callable[[], Scheduler], *, ordered: bool
) -> MapResult[R]:
    """Start the map: check the arguments (TypeError), then submit the calls to the scheduler that `begin` creates."""
    if not callable(function):
        raise TypeError(f"map takes a function and items, such as map(f, range(10)); {function!r} is not callable")
    if not sequences:
        raise TypeError("map takes a function and items, such as map(f, range(10)); no items were given")
    calls: list[Arguments] = [(row, {}) for row in zip(*sequences, strict=False)]
    scheduler = begin()
    try:
        numbers, futures = scheduler.submit(scheduler.add_function(function), calls)
    except BaseException:
        scheduler.close()
        raise
    return MapResult(scheduler, numbers, futures, ordered=ordered)


def check_chunksize(chunksize: Chunksize) -> int | None:
    """Return the number of items of a request, or None to choose it by their duration. ValueError, TypeError."""
    if chunksize == "auto":
        return None
    if not isinstance(chunksize, int) or isinstance(chunksize, bool):
        raise TypeError(f"chunksize must be a number of items or 'auto', not {chunksize!r}")
    if chunksize < 1:
        raise ValueError(f"chunksize must be at least 1, or 'auto', not {chunksize}")
    return chunksize
