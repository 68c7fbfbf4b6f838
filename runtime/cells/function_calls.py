"""Calls of a function on a rank, with the variables of its cells as globals: for views.

The output and displays of a call are recorded with its result and not shown, since the view's program reads them.
"""

from __future__ import annotations

import ast
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from IPython.utils.capture import capture_output

from meshbook.runtime.cells.failures import make_rank_error
from meshbook.runtime.cells.outcome import RankError
from meshbook.runtime.cells.packed_values import PackedValues, pack
from meshbook.runtime.cells.shell import RankShell
from meshbook.runtime.cells.variables import Namespace, RequestError, VariableRequest
from meshbook.runtime.errors import PickleError
from meshbook.runtime.traces import format_error
from meshbook.runtime.wire.functions import binding_to, lent

Answer = PackedValues | RankError | RequestError


@dataclass(frozen=True)
class RecordedResult:
    """The result of a call, with its output, displays and published data; `began` in seconds since 1970."""

    answer: Answer
    stdout: str
    stderr: str
    outputs: tuple[Mapping[str, Any], ...]  # display bundles: `data` and `metadata`
    began: float
    seconds: float
    data: tuple[PackedValues, ...] = ()  # each has some names


class Reference:
    """A variable of a rank, by name. As an argument or function of a call, it is replaced by the rank's own value."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"Reference() takes the name of a variable, such as 'x', not {name!r}")
        self.name = name

    def __repr__(self) -> str:
        return f"<Reference: {self.name!r}>"


@dataclass(frozen=True)
class Apply(VariableRequest):
    """Call a function; the parcel has `function`, `arguments` and `keywords`. The answer is a parcel of `value`.

    If `each` is true, it is called with each element of its arguments, and the value is the list of the results.
    """

    parcel: PackedValues

    def handle(self, namespace: Namespace) -> RecordedResult:
        return record(lambda: self._call(namespace.values))

    def _call(self, names: dict[str, Any]) -> Any:
        with binding_to(names) as brought:
            opened = self.parcel.open()
        function = bind(opened["function"], names)
        arguments, keywords = dereference((opened["arguments"], opened["keywords"]), names)
        with lent(names, brought):
            return list(map(function, *arguments)) if opened["each"] else function(*arguments, **keywords)


@dataclass(frozen=True)
class Execute(VariableRequest):
    """Run Python source, magics included. The answer is the text of its last expression, or None if `silent`."""

    source: str
    name: str  # of the source, in tracebacks
    silent: bool = True

    def handle(self, namespace: Namespace) -> RecordedResult:
        return record(lambda: self._run(namespace))

    def _run(self, namespace: Namespace) -> Mapping[str, Any] | None:
        source = RankShell.instance().transform_cell(self.source) if RankShell.initialized() else self.source
        tree = ast.parse(source, self.name)
        last = tree.body[-1] if tree.body and not self.silent else None
        if not isinstance(last, ast.Expr):
            exec(compile(tree, self.name, "exec"), namespace.values)
            return None
        exec(compile(ast.Module(tree.body[:-1], []), self.name, "exec"), namespace.values)
        value = eval(compile(ast.Expression(last.value), self.name, "eval"), namespace.values)
        if value is None:
            return None
        data: Mapping[str, Any] = namespace.formatter.format(value)[0]
        return data


@dataclass(frozen=True)
class Evaluate(VariableRequest):
    """Send the values of expressions, as a list."""

    expressions: tuple[str, ...]

    def handle(self, namespace: Namespace) -> RecordedResult:
        return record(lambda: [eval(each, namespace.values) for each in self.expressions])


@dataclass(frozen=True)
class Clear(VariableRequest):
    """Delete all variables that cells and calls have made."""

    def handle(self, namespace: Namespace) -> None:
        for name in namespace.names():
            namespace.values.pop(name, None)


class Each:
    """A function that is called with each element of its arguments; the value is the list of the results."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def bind_to(self, names: dict[str, Any]) -> Each:
        """Return the same on a rank with these names."""
        return Each(bind(self.function, names))

    def __call__(self, *columns: Any) -> list[Any]:
        return list(map(self.function, *columns))


class RecordedFunction:
    """A function whose calls return a RecordedResult. Pickled once for all calls of a map."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._names: dict[str, Any] = {}
        self.__name__ = getattr(function, "__name__", type(function).__name__)

    def bind_to(self, names: dict[str, Any]) -> RecordedFunction:
        """Return the same function on a rank with these names."""
        bound = RecordedFunction(bind(self.function, names))
        bound._names = names
        return bound

    def __call__(self, *arguments: Any, **keywords: Any) -> RecordedResult:
        def call() -> Any:
            args, kwargs = dereference((arguments, keywords), self._names)
            return self.function(*args, **kwargs)

        return record(call)


def record(call: Callable[[], Any]) -> RecordedResult:
    """Call this and record its output and displays. An interrupt becomes the error of the call."""
    began, clock = time.time(), time.perf_counter()
    sys.modules.update(_DATAPUB)  # the program's own `import ipyparallel` is of the notebook
    token = _published.set([])
    try:
        with capture_output() as captured:
            answer = _answer(call)
        data = tuple(_published.get() or ())
    finally:
        _published.reset(token)
    seconds = time.perf_counter() - clock
    outputs = tuple({"data": each.data, "metadata": each.metadata} for each in captured.outputs)
    return RecordedResult(answer, captured.stdout, captured.stderr, outputs, began, seconds, data)


_published: ContextVar[list[PackedValues] | None] = ContextVar("published", default=None)  # by the present call


def publish_data(data: Mapping[str, Any]) -> None:
    """Set entries of the `data` of the present call's result, as `ipyparallel.datapub` does; they arrive with it.

    RuntimeError outside of a call of a view; PickleError for values that cannot be sent.
    """
    if (present := _published.get()) is None:
        raise RuntimeError(
            "publish_data() is for functions that a view of ipyparallel calls, in the thread of the call"
        )
    present.append(pack(dict(data)))


def _make_datapub(name: str) -> ModuleType:
    module = ModuleType(name, "Names of ipyparallel for functions on a rank.")
    module.__dict__["publish_data"] = publish_data
    return module


_DATAPUB = {name: _make_datapub(name) for name in ("ipyparallel.datapub", "ipyparallel.engine.datapub")}


def _answer(call: Callable[[], Any]) -> Answer:
    try:
        value = call()
    except PickleError as error:
        return RequestError(str(error))
    except (Exception, KeyboardInterrupt) as error:
        # Without the error itself, which the notebook shows once for all ranks.
        own = "".join(traceback.format_exception_only(error)).splitlines()
        return make_rank_error(error, format_error(error).splitlines()[: -len(own)])
    try:
        return pack({"value": value})
    except PickleError as error:
        return RequestError(str(error))


def bind(function: Any, names: dict[str, Any]) -> Any:
    """Return a function of a view, or the object in place of one, on a rank with these names."""
    if isinstance(function, Reference):
        return eval(function.name, names)
    own = getattr(type(function), "bind_to", None)
    return function if own is None else own(function, names)


def dereference(value: Any, names: dict[str, Any]) -> Any:
    """Replace each Reference in a value by the rank's variable; in tuples, lists and dicts, too."""
    if isinstance(value, Reference):
        return eval(value.name, names)
    if type(value) in (tuple, list):
        parts = type(value)(dereference(part, names) for part in value)
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    if type(value) is dict:
        made = {key: dereference(part, names) for key, part in value.items()}
        return value if all(made[key] is value[key] for key in value) else made
    return value
