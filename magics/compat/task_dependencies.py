"""`Dependency`: the calls after which a task begins, or beside which it runs, and when that is decided. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from meshbook.runtime.cells.dependencies import ImpossibleDependency


class DependedCall(Protocol):
    """The attributes of a call that are needed here."""

    engine: int | None

    def done(self) -> bool: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...
    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


class Dependency(set[Any]):
    """Ids and results of calls, all or any of which must have ended: with success, with failure, or either."""

    def __init__(
        self,
        dependencies: Any = (),
        all: bool = True,  # noqa: A002  # ipyparallel's name
        success: bool = True,
        failure: bool = False,
    ) -> None:
        if not (success or failure):
            raise ValueError("a Dependency needs at least one of success=True and failure=True")
        is_one = isinstance(dependencies, str | Future) or hasattr(dependencies, "msg_ids")
        super().__init__([dependencies] if is_one else dependencies)
        self.all = all
        self.success = success
        self.failure = failure

    def __repr__(self) -> str:
        how = f"all={self.all}, success={self.success}, failure={self.failure}"
        return f"Dependency({len(self)} {'call' if len(self) == 1 else 'calls'}, {how})"


@dataclass(frozen=True)
class Condition:
    """A dependency with its calls."""

    calls: Collection[DependedCall]
    all: bool = True
    success: bool = True
    failure: bool = False

    @classmethod
    def of(cls, dependency: Any, find: Callable[[Any], Iterable[DependedCall]]) -> Condition:
        """Return the condition of a `Dependency`, or of one or several results or ids; `find` returns their calls."""
        if dependency is None:
            return cls(())
        given = dependency if isinstance(dependency, Dependency) else Dependency(dependency)
        calls = [call for each in given for call in find(each)]
        return cls(calls, given.all, given.success, given.failure)

    def is_met(self) -> bool:
        """Return whether it is met; False: not yet. Raises ImpossibleDependency once it cannot be met any more."""
        done = [call for call in self.calls if call.done()]
        met = self._met()
        if len(met) < len(done) if self.all else len(done) == len(self.calls) > 0 and not met:
            unwanted = "succeeded" if self.failure else "failed"
            raise ImpossibleDependency(
                f"{'a call' if self.all else 'each call'} that the task depends on has {unwanted}"
            )
        return len(met) == len(self.calls) if self.all else bool(met) or not self.calls

    def ranks(self, ranks: Collection[int]) -> list[int]:
        """Return those of these ranks on which all, or any, of the calls have run. Raises ImpossibleDependency."""
        places = {call.engine for call in self._met()}
        if not self.calls:
            return list(ranks)
        found = [rank for rank in ranks if rank in places and not (self.all and len(places) > 1)]
        if not found:
            raise ImpossibleDependency("no rank of the view has run the calls that the task follows")
        return found

    def _met(self) -> list[DependedCall]:
        return [
            call for call in self.calls if call.done() and (self.success if call.exception(0) is None else self.failure)
        ]
