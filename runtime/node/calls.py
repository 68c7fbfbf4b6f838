"""Who still owes an answer: the table of a node's pending calls. Pure: no socket, no clock, no thread of its own.

O(pending) when a node dies; deaths are rare, and a few hundred thousand entries scan in milliseconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from meshbook.runtime.actor.future import Future, Helper
from meshbook.runtime.actor.values import Once, ValueMesh
from meshbook.runtime.errors import CallCancelled, CallError, SupervisionError
from meshbook.runtime.geometry import Region
from meshbook.runtime.snapshots import items_of
from meshbook.runtime.wire.messages import Address, Manner

Decode = Callable[[], Any]
Explain = Callable[[BaseException], BaseException]
NO_RANK = -1


@dataclass(frozen=True, slots=True)
class Target:
    """An actor on a node: where a call goes. `manner` says what a call asks for there by name."""

    address: Address
    actor: str
    manner: Manner = ""


Unanswered = tuple[int, Target, int]  # which of the targets, the target, the number of the call
ANY = -1  # the index of an answer that any of the targets may give


class Taker(Protocol):
    """Who takes answers, and is told the index of the target among those that were asked.

    A port is told the rank of who sends; with NO_RANK it is told that nothing will come any more.
    """

    def answer(self, index: int, decode: Decode) -> None:
        """A value came; `decode` makes it."""

    def refuse(self, index: int, error: BaseException) -> None:
        """An error came, or no answer can come any more."""


class Asker(Taker, Protocol):
    """Who asks some targets."""

    def asked(self, inquiry: Inquiry) -> None:
        """The questions go out now, and the answers come in at `inquiry.helper`."""


class CallTable:
    """Pending calls by id, from `first` on. Each operation is a single dictionary step, so threads need no lock."""

    def __init__(self, first: int = 1) -> None:
        self._ids = itertools.count(first)
        self._pending: dict[int, tuple[Taker, int, str]] = {}
        self._standing: dict[int, Taker] = {}  # ports: they take any number of answers

    def __len__(self) -> int:
        return len(self._pending)

    def open(self, asker: Taker, nodes: Sequence[str]) -> list[int]:
        """Note one question per node; their ids, in order."""
        ids = []
        for index, node in enumerate(nodes):
            call = next(self._ids)
            self._pending[call] = (asker, index, node)
            ids.append(call)
        return ids

    def adopt(self, asker: Taker, questions: Sequence[tuple[int, str]]) -> None:
        """Note questions that a process before this one has put: their ids, and the node that owes each answer."""
        for index, (call, node) in enumerate(questions):
            self._pending[call] = (asker, index, node)

    def open_port(self, asker: Taker, *, once: bool) -> int:
        """Note somebody who takes whatever is sent to the id that is returned, from any node; `once` only the first."""
        number = next(self._ids)
        if once:
            self._pending[number] = (asker, NO_RANK, "")
        else:
            self._standing[number] = asker
        return number

    def is_open(self, call: int) -> bool:
        """Whether somebody waits for this call."""
        return call in self._pending

    def close_port(self, number: int) -> None:
        self._standing.pop(number, None)
        self._pending.pop(number, None)

    def take(self, call: int, rank: int = NO_RANK) -> tuple[Taker, int] | None:
        """Whoever waits for this call, once, or has this port; None where nobody does (any more).

        With the index to tell it: of the target for a call, for a port `rank`.
        """
        if (found := self._pending.pop(call, None)) is not None:
            return found[0], rank if found[1] == NO_RANK else found[1]
        asker = self._standing.get(call)
        return (asker, rank) if asker is not None else None

    def take_all(self, node: str | None = None) -> list[tuple[Taker, int]]:
        """Everyone who waits for a node; without one everyone, those with a port included."""
        ports = [] if node is not None else [self._standing.pop(number, None) for number in list(self._standing)]
        ids = [call for call, (_, _, owed_by) in items_of(self._pending) if node is None or owed_by == node]
        found = [self.take(call) for call in ids]
        return [*filter(None, found), *((port, NO_RANK) for port in ports if port is not None)]


@dataclass(frozen=True, slots=True)
class Desk:
    """What all questions of a node have in common."""

    table: CallTable
    helper: Helper  # where the answers come in
    tell: Callable[[Target, int], None]  # tells a target that its answer is not wanted


class Inquiry:
    """One question, put to some targets under these numbers."""

    __slots__ = ("_calls", "_desk", "_endpoint", "_targets")

    def __init__(self, desk: Desk, targets: Sequence[Target], calls: Sequence[int], endpoint: str) -> None:
        self._desk = desk
        self._targets = targets
        self._calls = calls
        self._endpoint = endpoint

    @property
    def helper(self) -> Helper:
        return self._desk.helper

    def owing(self, index: int | None) -> list[tuple[Target, str, int]]:
        """Who of all targets, or of that one, has not answered: whose answer is needed for sure.

        With the endpoint, and the number of the call.
        """
        owing = [(target, self._endpoint, call) for _, target, call in self._open(index)]
        return [] if index == ANY and len(owing) > 1 else owing

    def unanswered(self) -> list[Unanswered]:
        """Which targets have not answered."""
        return self._open(None)

    def give_up(self, error: Callable[[], BaseException]) -> None:
        """Wait no longer for those that have not answered."""
        for _, _, call in self._open(None):
            if (found := self._desk.table.take(call)) is not None:
                found[0].refuse(found[1], error())

    def cancel(self, index: int | None) -> bool:
        """Take the question back; whether there was still somebody to answer it."""
        taken = False
        for _, target, call in self._open(index):
            if (found := self._desk.table.take(call)) is not None:
                taken = True
                found[0].refuse(found[1], CallCancelled(f"the call of {self._endpoint}() was cancelled"))
                self._desk.tell(target, call)
        return taken

    def _open(self, index: int | None) -> list[Unanswered]:
        every = list(zip(itertools.count(), self._targets, self._calls))  # the count has no end
        chosen = every if index is None or index == ANY else every[index : index + 1]
        return [each for each in chosen if self._desk.table.is_open(each[2])]


class Each:
    """Asks some targets, into one future each. `explain` words an error for whoever asked."""

    __slots__ = ("_explain", "futures")

    def __init__(self, count: int, explain: Explain = lambda error: error) -> None:
        self.futures: list[Future[Any]] = [Future.pending() for _ in range(count)]
        self._explain = explain

    def asked(self, inquiry: Inquiry) -> None:
        for index, future in enumerate(self.futures):
            future.asked(inquiry, index)

    def answer(self, index: int, decode: Decode) -> None:
        self.futures[index].resolve(decode)

    def refuse(self, index: int, error: BaseException) -> None:
        self.futures[index].fail(self._explain(error))


class Arrivals:
    """Asks some targets; the n-th future is of whoever answers n-th."""

    __slots__ = ("_arrived", "_each")

    def __init__(self, count: int, explain: Explain = lambda error: error) -> None:
        self._each = Each(count, explain)
        self._arrived = itertools.count()  # `next` is one step: two threads may come with answers

    @property
    def futures(self) -> list[Future[Any]]:
        return self._each.futures

    def asked(self, inquiry: Inquiry) -> None:
        for future in self.futures:
            # Who will answer n-th is not known: to cancel one is to cancel all that are still to come.
            future.asked(inquiry, ANY)

    def answer(self, index: int, decode: Decode) -> None:
        self._each.answer(next(self._arrived), decode)

    def refuse(self, index: int, error: BaseException) -> None:
        self._each.refuse(next(self._arrived), error)


class Relay:
    """Asks some targets for a port of this node: their answers and errors go to it, as if sent from those ranks."""

    __slots__ = ("_explain", "_first", "_number", "_table")

    def __init__(self, table: CallTable, number: int, first: int, explain: Explain) -> None:
        self._table = table
        self._number = number
        self._first = first  # the rank of the first target
        self._explain = explain

    def asked(self, inquiry: Inquiry) -> None:
        pass  # nobody waits here, but at the port

    def answer(self, index: int, decode: Decode) -> None:
        if (found := self._table.take(self._number, self._first + index)) is not None:
            found[0].answer(found[1], decode)

    def refuse(self, index: int, error: BaseException) -> None:
        if (found := self._table.take(self._number, self._first + index)) is not None:
            found[0].refuse(found[1], self._explain(error))


class Fold:
    """Asks some targets, into one future of all values, combined in order of arrival; the first error fails it."""

    def __init__(self, count: int, combine: Callable[[list[Decode]], Any], explain: Explain) -> None:
        self.future: Future[Any] = Future.pending()
        self._count = count
        self._combine = combine
        self._explain = explain
        self._values: list[Decode] = []

    def asked(self, inquiry: Inquiry) -> None:
        self.future.asked(inquiry, None)

    def answer(self, index: int, decode: Decode) -> None:
        self._values.append(decode)
        if len(self._values) == self._count:
            self.future.resolve(lambda: self._combine(self._values))

    def refuse(self, index: int, error: BaseException) -> None:
        self.future.fail(self._explain(error))


class Gather:
    """Asks all ranks of a mesh, into one future of a value mesh.

    Waits for all of them and then raises the error of the lowest failing rank; but a rank that is lost (a
    SupervisionError) or cancelled ends the wait at once. The error carries what is known by then of the other ranks.
    """

    def __init__(self, region: Region, explain: Explain = lambda error: error) -> None:
        self.future: Future[ValueMesh[Any]] = Future.pending()
        self._region = region
        self._explain = explain
        size = len(region.ranks())
        self._values: list[Decode | None] = [None] * size
        self._errors: dict[int, BaseException] = {}
        self._missing = set(range(size))  # a set, so that an answer and a loss that race count once

    def asked(self, inquiry: Inquiry) -> None:
        self.future.asked(inquiry, None)

    def answer(self, index: int, decode: Decode) -> None:
        self._values[index] = Once(decode)
        self._settle(index)

    def refuse(self, index: int, error: BaseException) -> None:
        self._errors[index] = self._explain(error)
        if isinstance(error, SupervisionError | CallCancelled):
            self._fail(index)
        self._settle(index)

    def _settle(self, index: int) -> None:
        self._missing.discard(index)
        if self._missing:
            return
        if self._errors:
            self._fail(min(self._errors))
            return
        mesh: ValueMesh[Any] = ValueMesh(self._region, [value for value in self._values if value is not None])
        self.future.resolve(lambda: mesh)

    def _fail(self, index: int) -> None:
        error = self._errors[index]
        if isinstance(error, CallError) and not self.future.done():
            error.failures = dict(sorted(items_of(self._errors)))
            error.results = self._partial()
        self.future.fail(error)

    def _partial(self) -> ValueMesh[Any] | None:
        """The values of the ranks that have answered, None without any."""
        ranks = self._region.ranks()
        there = {rank: value for rank, value in zip(ranks, self._values, strict=True) if value is not None}
        if not there:
            return None
        return ValueMesh(self._region.pick(there), list(there.values()), base=tuple(there))


class Conversions(Gather):
    """Waits until all ranks of a mesh have another class; `undo` is called if none has taken it on."""

    def __init__(self, region: Region, explain: Explain, undo: Callable[[], None]) -> None:
        super().__init__(region, explain)
        self._undo = undo

    def _fail(self, index: int) -> None:
        # Before the future is settled, so that whoever waits for it finds all as it was.
        if not self._missing - self._errors.keys() and self._partial() is None:
            self._undo()
        super()._fail(index)


class Endings(Gather):
    """Waits until all ranks of a mesh have ended; `has_ended` says of a rank whether its process has."""

    def __init__(self, region: Region, has_ended: Callable[[int], bool]) -> None:
        super().__init__(region)
        self._has_ended = has_ended

    def refuse(self, index: int, error: BaseException) -> None:
        if self._has_ended(index):
            self.answer(index, lambda: None)
        else:
            super().refuse(index, error)
