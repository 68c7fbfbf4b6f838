"""The time limit of a call: when it has passed, the error says where each rank is that has not answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import CallTimeout
from meshbook.runtime.node.calls import Each, Inquiry, Unanswered

ANSWER_SECONDS = 0.5  # that the silent have at most to say where they are


class Asking(Protocol):
    """What a limit needs of its node."""

    def later(self, seconds: float, callback: Callable[[], object]) -> None: ...
    def ask_where(self, silent: Sequence[Unanswered], asker: Each) -> None: ...


class TimeLimit:
    """Ends a question after so many seconds. `name` is what was called, for the error; `first` the first rank of it."""

    def __init__(self, node: Asking, inquiry: Inquiry, seconds: float, *, name: str, count: int, first: int) -> None:
        self._node = node
        self._inquiry = inquiry
        self._seconds = seconds
        self._name = name
        self._count = count
        self._first = first
        node.later(seconds, self._pass)

    def _pass(self) -> None:
        """The time is over: ask the silent where they are."""
        if silent := self._inquiry.unanswered():
            asker = Each(len(silent))
            self._node.ask_where(silent, asker)
            places = asker.futures

            def look() -> None:
                if all(place.done() for place in places):
                    self._end(silent, places)

            for place in places:
                place.when_done(look)
            self._node.later(ANSWER_SECONDS, lambda: self._end(silent, places))

    def _end(self, silent: Sequence[Unanswered], places: Sequence[Future[str]]) -> None:
        """Can be said twice: who waits has one error, the first."""
        lines = [
            f"    rank {self._first + index} ({target.address.node}) is {_say(place)}"
            for (index, target, _), place in zip(silent, places, strict=True)
        ]
        count = f"{len(silent)} of {self._count} ranks" if self._count > 1 else "the actor"
        text = "\n".join([f"{self._name}() had no answer from {count} after {self._seconds:g} s", *lines])
        self._inquiry.give_up(lambda: CallTimeout(text))


def _say(place: Future[Any]) -> str:
    if not place.done():
        return "silent: its process does not answer either (stopped, or it holds the interpreter's lock)"
    error = place.exception()
    return f"gone: {error}" if error is not None else str(place.get())
