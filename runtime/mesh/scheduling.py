"""The scheduler of maps: sends requests to ranks, handles answers, deaths and cancellations, and settles futures.

It neither assigns items to ranks (`balancing`) nor defines the result for users (`mapping`).
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import CallCancelled, ItemError, ItemLost, SupervisionError, WireError
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.balancing import Balancer, ItemRequest
from meshbook.runtime.mesh.process_actor import PROCESS
from meshbook.runtime.mesh.runners import Runner
from meshbook.runtime.mesh.tasks import (
    BatchReply,
    Function,
    Item,
    ItemBatch,
    ItemFailure,
    Outcome,
    Packed,
    UnstartedItems,
    copied,
    pack,
    table_of,
    unpack,
)
from meshbook.runtime.threads import get_within
from meshbook.runtime.traces import name_cells

if TYPE_CHECKING:
    pass

Arguments: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]
LOOK_SECONDS = 0.25  # between checks, while no rank is alive, whether respawned ranks are lost for good
LONGEST_WAIT = 60.0  # seconds; the timeout of a queue must be finite
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ItemTiming:
    """Where and when an item ran: `began` in seconds since 1970, and its duration in `seconds`."""

    rank: int
    host: str
    began: float
    seconds: float


@dataclass(frozen=True)
class _PendingItem:
    """An item that is not settled. `place` is its position, for errors."""

    future: Future[Any]
    function: int
    arguments: Arguments
    place: int


class Scheduler:
    """Hands out tasks to ranks until all are settled.

    Its thread runs while there are tasks. It pickles the user's objects, which the I/O thread must not do. `keeps`:
    more tasks may be submitted after all are settled, until `close()`.
    """

    def __init__(self, runner: Runner, name: str, chunksize: int | None = None, *, keeps: bool = False) -> None:
        self.name = name
        self.again: dict[int, list[int]] = {}  # task that was handed out again -> ranks that died while they had it
        self.runs: dict[int, ItemTiming] = {}
        self._runner = runner
        self._keeps = keeps
        self._node = current_node()
        self._context = contextvars.copy_context()
        # Guards the balancer and the tasks: any thread submits and cancels. Re-entrant: a finalizer may cancel.
        self._lock = threading.RLock()
        alive = [rank for rank, address in runner.nodes.items() if self._node.peers.report_of(address.node) is None]
        self._balancer = Balancer(alive, chunksize)
        self._tasks: dict[int, _PendingItem] = {}
        self._cancelled: set[int] = set()  # tasks that had already been handed out
        self._functions: dict[int, Packed] = {}
        self._streams: dict[bytes, int] = {}  # functions without buffers, by their pickles
        self._known: dict[int, set[int]] = {rank: set() for rank in runner.nodes}  # rank -> functions that it has
        self._numbers = itertools.count()
        self._last_loss = "before the map"  # the text of its error
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._rank_of = {address.node: rank for rank, address in runner.nodes.items()}
        self._node.peers.when_restarted.append(self._note_restarted)

    # -- for any thread ------------------------------------------------------------------

    def add_function(self, function: Function) -> int:
        """Pickle a function, once for all ranks, and return its number. PickleError if it cannot be pickled."""
        # Copied: the user may change large values before a rank receives them.
        kept = copied(pack(function, f"the function {name_of(function)}"))
        with self._lock:
            # A program may submit the same function repeatedly.
            same = self._streams.get(kept[0]) if len(kept) == 1 and isinstance(kept[0], bytes) else None
            if same is not None:
                return same
            number = len(self._functions)
            self._functions[number] = kept
            if len(kept) == 1 and isinstance(kept[0], bytes):
                self._streams[kept[0]] = number
        return number

    def submit(self, function: int, calls: Iterable[Arguments]) -> tuple[list[int], list[Future[Any]]]:
        """Add a task for each call of a function; return their numbers and futures."""
        made: dict[int, _PendingItem] = {}
        for place, arguments in enumerate(calls):
            number = next(self._numbers)
            future: Future[Any] = Future.pending()
            future.set_pending_call(_PendingItemCall(self, number), 0)
            made[number] = _PendingItem(future, function, arguments, place)
        with self._lock:
            self._context = contextvars.copy_context()  # output of the ranks goes to the cell that submits
            self._tasks.update(made)
            self._balancer.add(made)
            self._wake()
        return list(made), [task.future for task in made.values()]

    def cancel(self, numbers: Collection[int]) -> bool:
        """Cancel those of these tasks that have not begun. Return whether one of them was not handed out yet."""
        wanted = frozenset(numbers)
        with self._lock:
            dropped = self._balancer.drop(wanted)
            futures = [self._tasks.pop(number).future for number in dropped]
            self._cancelled |= wanted & self._tasks.keys()
            handed_out = [
                (request, items)
                for request in self._balancer.open_requests()
                if (items := [item for item in request.items if item in wanted])
            ]
        for future in futures:
            future.fail(_cancelled())
        for request, items in handed_out:
            self._take_back(request, items)
        with self._lock:
            self._wake()
        return bool(dropped)

    def forget(self, number: int) -> None:
        """Drop the record of where a settled task ran. For a scheduler that is kept."""
        self.runs.pop(number, None)
        self.again.pop(number, None)

    def close(self) -> None:
        """Accept no more tasks; existing ones continue."""
        with self._lock:
            self._keeps = False
            self._wake()

    @property
    def ranks(self) -> list[int]:
        """The ranks that are alive."""
        with self._lock:
            return sorted(self._balancer.ranks)

    @property
    def load(self) -> dict[int, int]:
        """The number of unanswered items of each rank."""
        with self._lock:
            found = dict.fromkeys(self._balancer.ranks, 0)
            for request in self._balancer.open_requests():
                found[request.rank] += len(request.items)
        return found

    @property
    def unassigned(self) -> int:
        """The number of tasks that have not been handed out."""
        with self._lock:
            return len(self._tasks) - sum(len(request.items) for request in self._balancer.open_requests())

    def _wake(self) -> None:
        """Wake the scheduler thread; start it if there is none."""
        self._events.put(_nothing)
        if self._thread is None:
            run = functools.partial(self._context.copy().run, self._run)
            self._thread = threading.Thread(target=run, name="meshbook map", daemon=True)
            self._thread.start()

    def _note_restarted(self, node: str) -> None:
        """Add the rank of a restarted node. On the I/O thread."""
        if (rank := self._rank_of.get(node)) is not None:
            self._events.put(functools.partial(self._join, rank))

    # -- on its thread ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (seconds := self._step()) is not None:
                with contextlib.suppress(queue.Empty):
                    get_within(self._events, seconds)()
        except Exception:  # a bug of the scheduler: otherwise all futures would stay open
            logger.exception("a map failed")
            self._fail_all(lambda task: SupervisionError(f"the map of {self.name} failed; see the log"))
        if not self._keeps:
            self._end()

    def _step(self) -> float | None:
        """Do all that is possible now. Return how long to wait for an event, or None if no work is left."""
        with self._lock:
            dropped = self._balancer.drop(self._cancelled) if self._cancelled else []
        for number in dropped:  # they had been handed out and were withdrawn
            self._fail(number, lambda _: _cancelled())
        self._fail_without_ranks()
        while self._send_next():
            pass
        now = time.monotonic()
        with self._lock:
            late = self._balancer.late_requests(now)
            look = self._balancer.next_look()
            if not self._tasks and self._events.empty():
                self._thread = None
                return None
            has_ranks = bool(self._balancer.ranks)
        for request in late:
            self._take_back(request, list(request.items) if request.is_asked_back else [])
        return max(0.0, min(look - now, LONGEST_WAIT if has_ranks else LOOK_SECONDS))

    def _end(self) -> None:
        with contextlib.suppress(ValueError):  # it has ended before
            self._node.peers.when_restarted.remove(self._note_restarted)
        try:
            self._runner.close()
        except Exception:
            logger.exception("a map could not be closed")

    def _send_next(self) -> bool:
        """Send one request, if a rank has room for it. Return whether it did."""
        with self._lock:
            request = next(self._balancer.requests(time.monotonic()), None)
            tasks = [(item, self._tasks[item]) for item in request.items] if request is not None else []
        if request is None:
            return False
        items: list[Item] = []
        for number, task in tasks:
            try:
                items.append((number, task.function, pack(task.arguments, f"item {task.place} of {self.name}")))
            except Exception as error:
                self._fail(number, lambda _, error=error: error)  # type: ignore[misc]
        with self._lock:
            request.items = [number for number, _, _ in items]
        known = self._known[request.rank]
        functions = {number: self._functions[number] for _, number, _ in items if number not in known}
        known |= functions.keys()
        work = ItemBatch(self._runner.key, request.number, functions, tuple(items))
        try:
            answer = self._runner.send(request.rank, work)
        except Exception as error:
            answer = Future.failed(error)
        answer.when_done(lambda: self._events.put(lambda: self._take_answer(request, answer)))
        return True

    def _take_answer(self, request: ItemRequest, answer: Future[BatchReply]) -> None:
        try:
            done = answer.get()
        except Exception as error:
            is_loss = isinstance(error, SupervisionError) and not isinstance(error, WireError)
            self._lose(request, error) if is_loss else self._refuse(request, error)
            return
        with self._lock:
            executed = {outcome[0] for outcome in done.outcomes}
            seconds = sum(outcome[2] for outcome in done.outcomes)
            self._balancer.answered(request.rank, request.number, executed, seconds, time.monotonic())
        self._take_outcomes(done.outcomes, request.rank, done.host)

    def _take_outcomes(self, outcomes: Iterable[Outcome], rank: int, host: str) -> None:
        for number, began, seconds, outcome in outcomes:
            task = self._pop(number)
            if task is None:  # already settled
                continue
            self.runs[number] = ItemTiming(rank, host, began, seconds)
            if isinstance(outcome, ItemFailure):
                task.future.fail(self._make_error(task, outcome, rank, host))
            else:
                what = f"the value of item {task.place} of {self.name}"
                task.future.resolve(functools.partial(unpack, outcome, what))

    def _make_error(self, task: _PendingItem, raised: ItemFailure, rank: int, host: str) -> ItemError:
        head = f"{raised.type_name}: {raised.said}" if raised.said else raised.type_name
        trace = name_cells(raised.trace)
        text = f"item {task.place} of {self.name} failed on rank {rank} ({host}): {head}"
        return ItemError(
            f"{text}\n{trace}" if trace else text,
            raised.pickled,
            item=task.place,
            rank=rank,
            host=host,
            type_name=raised.type_name,
            text=raised.said,
            trace=trace,
        )

    def _refuse(self, request: ItemRequest, error: Exception) -> None:
        """Handle a request that could not be sent."""
        with self._lock:
            failed = self._balancer.refused(request.rank, request.number)
        # Functions in this request have not been sent either.
        self._known[request.rank].clear()
        for number in failed:
            self._fail(number, lambda _: error)

    def _lose(self, request: ItemRequest, error: Exception) -> None:
        rank, self._last_loss = request.rank, str(error)
        with self._lock:
            if not self._balancer.is_open(request):  # this death was handled before
                return
            loss = self._balancer.lose(rank)
            self._known[rank].clear()
            for number in loss.again:
                self.again.setdefault(number, []).append(rank)
            deaths = {number: self._balancer.died_with(number) for number in loss.abandoned}
            has_ended = self._node.peers.report_of(self._runner.nodes[rank].node) is not None
            if not has_ended and self._runner.may_return(rank):  # only the actor has failed
                self._balancer.join(rank)
        for number, ranks in deaths.items():
            self._fail(number, functools.partial(self._explain_loss, ranks, error))

    def _explain_loss(self, ranks: Sequence[int], error: Exception, task: _PendingItem) -> ItemLost:
        text = (
            f"item {task.place} of {self.name} was sent to a rank {len(ranks)} times, and each time the rank died "
            f"(ranks {', '.join(map(str, ranks))}): the item may be the cause. The last failure: {error}"
        )
        return ItemLost(text, task.place, tuple(ranks))

    def _join(self, rank: int) -> None:
        with self._lock:
            self._known[rank].clear()
            self._balancer.join(rank)

    def _fail_without_ranks(self) -> None:
        with self._lock:
            if self._balancer.ranks or not self._balancer.has_waiting:
                return
            if any(self._runner.may_return(rank) for rank in self._runner.nodes):
                return
            waiting = self._balancer.drop_all()
        for number in waiting:
            self._fail(number, functools.partial(self._explain_no_rank, self._balancer.died_with(number)))

    def _explain_no_rank(self, ranks: Sequence[int], task: _PendingItem) -> ItemLost:
        text = (
            f"item {task.place} of {self.name} has no rank to run on: {name_ranks(self._runner.nodes)} died; heal "
            f"the mesh and map again. The last failure: {self._last_loss}"
        )
        return ItemLost(text, task.place, tuple(ranks))

    def _fail(self, number: int, make_error: Callable[[_PendingItem], BaseException]) -> None:
        task = self._pop(number)
        if task is not None:
            task.future.fail(make_error(task))

    def _fail_all(self, make_error: Callable[[_PendingItem], BaseException]) -> None:
        with self._lock:
            self._balancer = Balancer(self._balancer.ranks)
            self._thread = None
            numbers = list(self._tasks)
        for number in numbers:
            self._fail(number, make_error)

    def _pop(self, number: int) -> _PendingItem | None:
        with self._lock:
            self._cancelled.discard(number)
            return self._tasks.pop(number, None)

    def _take_back(self, request: ItemRequest, items: list[int]) -> None:
        """Ask a rank to give back items that have not begun. On any thread."""
        arguments = self._runner.key, request.number, items
        address = self._runner.nodes[request.rank]
        if address == self._node.address:  # a client hosts no process actor to call
            answer = Future.completed(table_of(self._node).take_back(*arguments))
        else:
            try:
                answer = self._node.calls.ask(address, PROCESS, "take_back", *arguments)
            except Exception as error:
                answer = Future.failed(error)
        answer.when_done(lambda: self._events.put(lambda: self._put_back(request, answer)))

    def _put_back(self, request: ItemRequest, answer: Future[UnstartedItems]) -> None:
        try:
            returned = answer.get()
        except Exception:  # the rank is dead or unreachable: the request's answer settles its items
            return
        with self._lock:
            if not self._balancer.is_open(request):  # its answer arrived first, with the same outcomes
                return
            self._balancer.done_early(request.rank, request.number, {outcome[0] for outcome in returned.outcomes})
            self._balancer.given_back(request.rank, request.number, returned.items)
        self._take_outcomes(returned.outcomes, request.rank, returned.host)


class _PendingItemCall:
    """The pending call behind a task's future, so that `Future.cancel` cancels the task."""

    __slots__ = ("_number", "_scheduler")

    def __init__(self, scheduler: Scheduler, number: int) -> None:
        self._scheduler = scheduler
        self._number = number

    def cancel(self, index: int | None) -> bool:
        return self._scheduler.cancel([self._number])

    def owing(self, index: int | None) -> list[Any]:
        return []

    def describe(self, index: int | None) -> str:
        return f"item {self._number} of the map"


def _cancelled() -> CallCancelled:
    return CallCancelled("the item was cancelled before it began")


def _nothing() -> None:
    """An event that only wakes the thread."""


def name_of(function: Any) -> str:
    """Return the name of a function, as errors and displays show it."""
    return str(getattr(function, "__name__", type(function).__name__))
