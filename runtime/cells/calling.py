"""Calls of a function on a rank, in the variables of its cells: for views, whose functions mean what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from meshbook.runtime.cells.failures import describe_error
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.cells.parcels import Parcel, pack
from meshbook.runtime.cells.variables import Namespace, Refusal, Request
from meshbook.runtime.errors import PickleError
from meshbook.runtime.traces import format_error


@dataclass(frozen=True)
class Apply(Request):
    """Call a function; the parcel has `function`, `arguments` and `keywords`. Answers with a parcel of `value`.

    Where `each` is true, it is called with each element of its arguments, and the value is the list of the results.
    """

    parcel: Parcel

    def handle(self, namespace: Namespace) -> Parcel | RankError | Refusal:
        try:
            opened = self.parcel.open()
        except PickleError as error:
            return Refusal(str(error))
        function = at_home(opened["function"], namespace.values)
        if opened["each"]:
            return _answer(lambda: list(map(function, *opened["arguments"])))
        return _answer(lambda: function(*opened["arguments"], **opened["keywords"]))


@dataclass(frozen=True)
class Execute(Request):
    """Run Python source; its last value is nobody's."""

    source: str
    name: str  # of the source, in tracebacks

    def handle(self, namespace: Namespace) -> Parcel | RankError | Refusal:
        return _answer(lambda: exec(compile(self.source, self.name, "exec"), namespace.values))


def _answer(call: Callable[[], Any]) -> Parcel | RankError | Refusal:
    try:
        value = call()
    except Exception as error:
        return describe_error(error, format_error(error).splitlines()[:-1])
    try:
        return pack({"value": value})
    except PickleError as error:
        return Refusal(str(error))


def at_home(function: Any, names: dict[str, Any]) -> Any:
    """A function of the notebook's, with these as its globals. What it brought stands in for what is not there."""
    if not isinstance(function, FunctionType) or function.__module__ != "__main__":
        return function
    brought: Mapping[str, Any] = function.__globals__
    missing = {name: brought[name] for name in function.__code__.co_names if name in brought and name not in names}
    globals_ = names | missing if missing else names
    bound = FunctionType(function.__code__, globals_, function.__name__, function.__defaults__, function.__closure__)
    bound.__kwdefaults__ = function.__kwdefaults__
    return bound
