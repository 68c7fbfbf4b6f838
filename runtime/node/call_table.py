"""The table of a node's pending calls, and the handlers of their replies. Uses no socket, no clock and no thread.

O(pending) when a node dies; deaths are rare, and a few hundred thousand entries scan in milliseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from meshbook.runtime.actor.context import name_of
from meshbook.runtime.actor.failure import Receipt
from meshbook.runtime.actor.future import Future, when_settled
from meshbook.runtime.actor.values import LazyValue, ValueMesh
from meshbook.runtime.errors import CallCancelled, CallError, CallTimeout, SupervisionError
from meshbook.runtime.formats import name_ranks
from meshbook.runtime.geometry import Region
from meshbook.runtime.threads import items_of
from meshbook.runtime.wire.messages import Address, Manner

if TYPE_CHECKING:
    from meshbook.runtime.node.execution import CallPlace
    from meshbook.runtime.node.outbound import Outbound

Decode = Callable[[], Any]
Explain = Callable[[BaseException], BaseException]
NO_RANK = -1


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a call: an actor on a node. `manner` selects a special kind of call there by name.

    `rank` is its rank in the actor mesh, for messages; NO_RANK if it is in none.
    """

    address: Address
    actor: str
    manner: Manner = ""
    rank: int = field(default=NO_RANK, compare=False)


def is_alike(targets: Sequence[Target]) -> bool:
    """Return whether the messages of a call to these targets differ only in number and rank."""
    actor, manner = targets[0].actor, targets[0].manner
    for target in targets:  # noqa: SIM110 - this runs for each call, and a loop costs half of `all`
        if target.actor != actor or target.manner != manner:
            return False
    return True


Unanswered = tuple[int, Target, int]  # the index of the target, the target, the call number
ANY = -1  # the index of a reply that any of the targets may send


class ReplyHandler(Protocol):
    """Receives replies, each with the index of its target among the targets of the call.

    A port receives the rank of the sender as the index. NO_RANK means that no further reply can arrive at a port.
    """

    def answer(self, index: int, decode: Decode) -> None:
        """Handle a value, which `decode` returns."""

    def refuse(self, index: int, error: BaseException) -> None:
        """Handle an error reply, or the fact that no reply can arrive any more."""


class CallHandler(ReplyHandler, Protocol):
    """Receives the replies to a call of several targets."""

    def set_pending_call(self, pending_call: PendingCall) -> None:
        """Receive the pending call, just before its messages are sent."""


class CallTable:
    """Pending calls by id, numbered from `first`. Each operation is one dictionary step, so threads need no lock."""

    def __init__(self, first: int = 1) -> None:
        self._ids = itertools.count(first)
        # The handler; the id of the first target, or NO_RANK for a port; the targets, or the node of a single one. All
        # targets of a call share one entry: the garbage collector would visit thousands.
        self._pending: dict[int, tuple[ReplyHandler, int, Sequence[Target] | str]] = {}
        self._standing: dict[int, ReplyHandler] = {}  # ports: each receives any number of replies

    def __len__(self) -> int:
        return len(self._pending)

    def open(self, reply_handler: ReplyHandler, targets: Sequence[Target]) -> list[int]:
        """Register one call per target and return their ids, which are consecutive."""
        ids = list(itertools.islice(self._ids, len(targets)))  # one step: no other thread gets an id in between
        if ids:
            self._pending.update(dict.fromkeys(ids, (reply_handler, ids[0], targets)))
        return ids

    def open_one(self, reply_handler: ReplyHandler, node: str) -> int:
        """Register a call to one node and return its id."""
        call = next(self._ids)
        self._pending[call] = (reply_handler, call, node)
        return call

    def adopt(self, reply_handler: ReplyHandler, calls: Sequence[tuple[int, str]]) -> None:
        """Register calls that an earlier process of this node has sent: (id, node that owes the reply)."""
        for index, (call, node) in enumerate(calls):
            self._pending[call] = (reply_handler, call - index, node)

    def open_port(self, reply_handler: ReplyHandler, *, once: bool) -> int:
        """Register a port and return its id. Any node may send to it; with `once` it receives only the first reply."""
        number = next(self._ids)
        if once:
            self._pending[number] = (reply_handler, NO_RANK, "")
        else:
            self._standing[number] = reply_handler
        return number

    def is_open(self, call: int) -> bool:
        """Whether this call still waits for its reply."""
        return call in self._pending

    def is_any_open(self, calls: Iterable[int]) -> bool:
        """Whether one of these calls still waits for its reply."""
        return not self._pending.keys().isdisjoint(calls)

    def close_port(self, number: int) -> None:
        self._standing.pop(number, None)
        self._pending.pop(number, None)

    def take(self, call: int, rank: int = NO_RANK) -> tuple[ReplyHandler, int] | None:
        """Remove a call and return its handler, or return the handler of a port; None for an unknown id.

        The second item is the index for the handler: that of the target for a call, `rank` for a port.
        """
        if (found := self._pending.pop(call, None)) is not None:
            return found[0], rank if found[1] == NO_RANK else call - found[1]
        reply_handler = self._standing.get(call)
        return (reply_handler, rank) if reply_handler is not None else None

    def withdraw(self, reply_handler: ReplyHandler) -> None:
        """Remove the calls with this handler: they were not sent, or their sender was interrupted."""
        for call, entry in items_of(self._pending):
            if entry[0] is reply_handler:
                self._pending.pop(call, None)

    def awaits(self, nodes: Collection[str]) -> bool:
        """Whether one of these nodes owes a reply."""
        return any(_debtor(call, entry) in nodes for call, entry in items_of(self._pending))

    def receipts(self, nodes: Collection[str], actor: str = "") -> dict[str, list[Receipt]]:
        """Return, by node, the receipts of the pending calls to an actor there; without an actor, to all actors."""
        handlers: dict[str, dict[int, ReplyHandler]] = {}
        for call, entry in items_of(self._pending):
            if (node := _debtor(call, entry)) in nodes:
                handlers.setdefault(node, {})[id(entry[0])] = entry[0]
        made = {node: [_receipt_of(handler) for handler in each.values()] for node, each in handlers.items()}
        return {
            node: [receipt for receipt in each if receipt is not None and actor in ("", receipt.actor)]
            for node, each in made.items()
        }

    def take_all(self, nodes: Collection[str] | None = None) -> list[tuple[ReplyHandler, int, str]]:
        """Remove all calls to these nodes, and return the handler, index and node of each.

        Without nodes, of all calls and ports.
        """
        ports = [] if nodes is not None else [self._standing.pop(number, None) for number in list(self._standing)]
        debtors = {call: _debtor(call, entry) for call, entry in items_of(self._pending)}
        chosen = [call for call, node in debtors.items() if nodes is None or node in nodes]
        found = [(*taken, debtors[call]) for call in chosen if (taken := self.take(call)) is not None]
        return [*found, *((port, NO_RANK, "") for port in ports if port is not None)]


def _debtor(call: int, entry: tuple[ReplyHandler, int, Sequence[Target] | str]) -> str:
    """Return the node that owes the reply to a call; "" for a port."""
    _, first, targets = entry
    return targets if isinstance(targets, str) else targets[call - first].address.node


@dataclass(frozen=True, slots=True)
class CallContext:
    """What all calls of a node share."""

    table: CallTable
    send_cancel: Callable[[Target, int], None]  # sends a cancellation of this call to the target


class PendingCall:
    """A call of one or several targets, with one call number each."""

    __slots__ = ("_call_context", "_calls", "_endpoint", "_targets")

    def __init__(
        self, call_context: CallContext, targets: Sequence[Target], calls: Sequence[int], endpoint: str
    ) -> None:
        self._call_context = call_context
        self._targets = targets
        self._calls = calls
        self._endpoint = endpoint

    @property
    def callee(self) -> str:
        """The key of the called actor; "" if this constructs one."""
        return "" if self._endpoint == "__init__" else self._first.actor

    @property
    def _first(self) -> Target:
        return self._targets[0]

    def owing(self, index: int | None) -> list[tuple[Target, str, int]]:
        """Return the targets whose reply the waiting future is sure to need, each with the endpoint and call number.

        `index` selects one target, None all of them. With ANY, a target is certain only if it is the last one.
        """
        owing = [(target, self._endpoint, call) for _, target, call in self._open(index)]
        return [] if index == ANY and len(owing) > 1 else owing

    def describe(self, index: int | None) -> str:
        """Return the call and the ranks that have not replied: `trainer.step() on ranks 0-3`."""
        name = name_of(self._first.actor)
        what = f"the start of {name}" if self._endpoint == "__init__" else f"{name}.{self._endpoint}()"
        ranks = {target.rank for _, target, _ in self._open(index)} - {NO_RANK}
        return f"{what} on {name_ranks(ranks)}" if ranks else what

    def unanswered(self) -> list[Unanswered]:
        """Return the targets that have not replied."""
        return self._open(None)

    def fail_pending(self, error: Callable[[], BaseException]) -> None:
        """Fail the targets that have not replied, each with its own error."""
        for _, _, call in self._open(None):
            if (found := self._call_context.table.take(call)) is not None:
                found[0].refuse(found[1], error())

    def cancel(self, index: int | None) -> bool:
        """Cancel the call; return whether a reply was still pending."""
        taken = False
        for _, target, call in self._open(index):
            if (found := self._call_context.table.take(call)) is not None:
                taken = True
                found[0].refuse(found[1], CallCancelled(f"the call of {self._endpoint}() was cancelled"))
                self._call_context.send_cancel(target, call)
        return taken

    def _open(self, index: int | None) -> list[Unanswered]:
        every = list(zip(itertools.count(), self._targets, self._calls))  # not strict: the count is infinite
        chosen = every if index is None or index == ANY else every[index : index + 1]
        return [each for each in chosen if self._call_context.table.is_open(each[2])]


def _receipt_of(reply_handler: Any) -> Receipt | None:
    """Return the receipt of a call, made now if there is none; None for anything but a call of an endpoint."""
    if (known := getattr(reply_handler, "receipt", None)) is not None:
        return known  # type: ignore[no-any-return]
    futures: Sequence[Future[Any]] = getattr(reply_handler, "futures", None) or [
        getattr(reply_handler, "future", Future.completed(0))
    ]
    pending_call = next((future.pending_call for future in futures if not future.done()), None)
    if not isinstance(pending_call, PendingCall) or not pending_call.callee:
        return None
    reply_handler.receipt = receipt = Receipt(pending_call.callee)
    for future in futures:
        future.note_in(receipt)
    return receipt


class PerRank:
    """Stores the reply of each target in a future of its own. `explain` converts an error for the caller."""

    __slots__ = ("_explain", "futures", "receipt")
    receipt: Receipt

    def __init__(self, count: int, explain: Explain = lambda error: error) -> None:
        self.futures: list[Future[Any]] = [Future.pending() for _ in range(count)]
        self._explain = explain

    def set_pending_call(self, pending_call: PendingCall) -> None:
        for index, future in enumerate(self.futures):
            future.set_pending_call(pending_call, index)

    def answer(self, index: int, decode: Decode) -> None:
        self.futures[index].resolve(decode)

    def refuse(self, index: int, error: BaseException) -> None:
        self.futures[index].fail(self._explain(error))


class SingleReply(PendingCall):
    """A call of one target, which stores the reply in a future. One object, since most calls are such calls."""

    __slots__ = ("_call", "_explain", "_target", "future", "receipt")
    receipt: Receipt

    def __init__(self, explain: Explain = lambda error: error) -> None:
        self.future: Future[Any] = Future.pending()
        self._explain = explain

    def sent(self, call_context: CallContext, target: Target, call: int, endpoint: str) -> None:
        """Register the target and the call number, just before the message is sent."""
        self._call_context = call_context
        self._target = target
        self._call = call
        self._endpoint = endpoint
        self.future.set_pending_call(self, 0)

    def answer(self, index: int, decode: Decode) -> None:
        self.future.resolve(decode)

    def refuse(self, index: int, error: BaseException) -> None:
        self.future.fail(self._explain(error))

    @property
    def _first(self) -> Target:
        return self._target

    def _open(self, index: int | None) -> list[Unanswered]:
        return [(0, self._target, self._call)] if self._call_context.table.is_open(self._call) else []


class AsCompleted:
    """Stores replies in order of arrival: the n-th future gets the n-th reply."""

    __slots__ = ("_arrived", "_each", "receipt")
    receipt: Receipt

    def __init__(self, count: int, explain: Explain = lambda error: error) -> None:
        self._each = PerRank(count, explain)
        self._arrived = itertools.count()  # `next` is atomic: two threads may deliver replies

    @property
    def futures(self) -> list[Future[Any]]:
        return self._each.futures

    def set_pending_call(self, pending_call: PendingCall) -> None:
        for future in self.futures:
            # The target of the n-th reply is unknown, so cancelling one future cancels all pending ones.
            future.set_pending_call(pending_call, ANY)

    def answer(self, index: int, decode: Decode) -> None:
        self._each.answer(next(self._arrived), decode)

    def refuse(self, index: int, error: BaseException) -> None:
        self._each.refuse(next(self._arrived), error)


class RelayToPort:
    """Forwards the replies and errors of several targets to a port of this node, as if sent from those ranks."""

    __slots__ = ("_explain", "_first", "_number", "_table")

    def __init__(self, table: CallTable, number: int, first: int, explain: Explain) -> None:
        self._table = table
        self._number = number
        self._first = first  # the rank of the first target
        self._explain = explain

    def set_pending_call(self, pending_call: PendingCall) -> None:
        pass  # the caller waits at the port

    def answer(self, index: int, decode: Decode) -> None:
        if (found := self._table.take(self._number, self._first + index)) is not None:
            found[0].answer(found[1], decode)

    def refuse(self, index: int, error: BaseException) -> None:
        if (found := self._table.take(self._number, self._first + index)) is not None:
            found[0].refuse(found[1], self._explain(error))


class Reduction:
    """Combines the values of all targets, in order of arrival, into one future; the first error fails it."""

    def __init__(self, count: int, combine: Callable[[list[Decode]], Any], explain: Explain) -> None:
        self.future: Future[Any] = Future.pending()
        self._count = count
        self._combine = combine
        self._explain = explain
        self._values: list[Decode] = []

    def set_pending_call(self, pending_call: PendingCall) -> None:
        self.future.set_pending_call(pending_call, None)

    def answer(self, index: int, decode: Decode) -> None:
        self._values.append(decode)
        if len(self._values) == self._count:
            self.future.resolve(lambda: self._combine(self._values))

    def refuse(self, index: int, error: BaseException) -> None:
        self.future.fail(self._explain(error))


class AllReplies:
    """Collects the replies of all ranks of a mesh into one future of a value mesh.

    Waits for all ranks and then fails with the error of the lowest failing rank. A rank that is lost (a
    SupervisionError) or cancelled ends the wait at once. The error carries the results and errors received by then.
    """

    def __init__(self, region: Region, explain: Explain = lambda error: error) -> None:
        self.future: Future[ValueMesh[Any]] = Future.pending()
        self._region = region
        self._explain = explain
        size = len(region)
        self._values: list[Decode | None] = [None] * size
        self._errors: dict[int, BaseException] = {}
        self._missing = set(range(size))  # a set, so that a reply and a loss that race count once

    def set_pending_call(self, pending_call: PendingCall) -> None:
        self.future.set_pending_call(pending_call, None)

    def answer(self, index: int, decode: Decode) -> None:
        self._values[index] = decode
        self._missing.discard(index)
        if not self._missing:
            self._settle()

    def refuse(self, index: int, error: BaseException) -> None:
        self._errors[index] = self._explain(error)
        if isinstance(error, SupervisionError | CallCancelled):
            self._fail(index)
        self._missing.discard(index)
        if not self._missing:
            self._settle()

    def _settle(self) -> None:
        if self._errors:
            self._fail(min(self._errors))
            return
        region, values = self._region, self._values
        self.future.resolve(lambda: ValueMesh.of_cells(region, list(map(LazyValue, filter(None, values)))))

    def _fail(self, index: int) -> None:
        error = self._errors[index]
        if isinstance(error, CallError) and not self.future.done():
            error.failures = dict(sorted(items_of(self._errors)))
            error.results = self._partial()
        self.future.fail(error)
        # The call stays in the table for the other ranks, which must not keep the future if the caller drops it.
        self.future = Future.failed(error)

    def _partial(self) -> ValueMesh[Any] | None:
        """Return the values of the ranks that have replied; None if there are none."""
        ranks = self._region.ranks()
        there = {rank: LazyValue(value) for rank, value in zip(ranks, self._values, strict=True) if value is not None}
        if not there:
            return None
        return ValueMesh.of_cells(self._region.pick(there), list(there.values()), base=tuple(there))


class ClassReloads(AllReplies):
    """Waits until all ranks of a mesh have replaced their class; calls `undo` if every rank has failed to."""

    def __init__(self, region: Region, explain: Explain, undo: Callable[[], None]) -> None:
        super().__init__(region, explain)
        self._undo = undo

    def _fail(self, index: int) -> None:
        # Undo before the future is settled, so that the waiting caller finds the old state.
        if not self._missing - self._errors.keys() and self._partial() is None:
            self._undo()
        super()._fail(index)


class Endings(AllReplies):
    """Waits until all ranks of a mesh have ended; `has_ended` returns whether the process of a rank has ended."""

    def __init__(self, region: Region, has_ended: Callable[[int], bool]) -> None:
        super().__init__(region)
        self._has_ended = has_ended

    def refuse(self, index: int, error: BaseException) -> None:
        if self._has_ended(index):
            self.answer(index, lambda: None)
        else:
            super().refuse(index, error)


ANSWER_SECONDS = 0.5  # time limit for the ranks without a reply to report where they are


class TimeLimit:
    """Fails a call after `seconds`, unless all of its futures are settled before.

    `name` is the called endpoint, for the error; `first` is the first called rank.
    """

    def __init__(
        self,
        calls: Outbound,
        pending_call: PendingCall,
        futures: Sequence[Future[Any]],
        seconds: float,
        *,
        name: str,
        count: int,
        first: int,
    ) -> None:
        self._calls = calls
        self._pending_call = pending_call
        self._seconds = seconds
        self._name = name
        self._count = count
        self._first = first
        when_settled(futures, calls.call_later(seconds, self._expire).cancel)

    def _expire(self) -> None:
        """Request the whereabouts of the ranks that have not replied, after the time limit."""
        if silent := self._pending_call.unanswered():
            ask_places(self._calls, silent, lambda places: self._end(silent, places))

    def _end(self, silent: Sequence[Unanswered], places: Sequence[Future[CallPlace]]) -> None:
        """Fail the pending calls. May run twice: a future keeps its first error."""
        lines = [
            f"    rank {self._first + index} ({target.address.node}) is {format_place(place)}"
            for (index, target, _), place in zip(silent, places, strict=True)
        ]
        count = f"{len(silent)} of {self._count} ranks" if self._count > 1 else "the actor"
        text = "\n".join([f"{self._name}() timed out: {count} did not answer within {self._seconds:g} s", *lines])
        self._pending_call.fail_pending(lambda: CallTimeout(text))


def ask_places(
    calls: Outbound, silent: Sequence[Unanswered], take: Callable[[Sequence[Future[CallPlace]]], object]
) -> None:
    """Request the whereabouts of calls, and pass them to `take`: once all have arrived, and after `ANSWER_SECONDS`."""
    places = calls.ask_where(silent)
    timer = calls.call_later(ANSWER_SECONDS, lambda: take(places))

    def take_all() -> None:
        timer.cancel()
        take(places)

    when_settled(places, take_all)


def format_place(place: Future[CallPlace]) -> str:
    """Return where a call is, or why its rank does not answer."""
    if not place.done():
        return "unresponsive: its process is stopped, or it holds the GIL"
    error = place.exception()
    return f"lost: {error}" if error is not None else str(place.get())
