"""Functions and code by value: the source that they bring along, and the globals that they get where they arrive.

Without more, a function keeps a copy of the globals that it uses. On a rank that runs cells, a function of the
notebook gets the variables of the rank as its globals, with all that is defined within it and all that it calls.
"""

from __future__ import annotations

import builtins
import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import CodeType, FunctionType
from typing import Any

Names = dict[str, Any]
# The namespace for functions that arrive, and the variables of the notebook that they have brought along.
_binding: ContextVar[tuple[Names, Names] | None] = ContextVar("binding", default=None)


@contextmanager
def binding_to(namespace: Names | None) -> Iterator[Names]:
    """Make this namespace the globals of functions of `__main__` that are unpickled meanwhile, unless it is None.

    Yields the variables of the sender that they use; it is complete at the end.
    """
    brought: Names = {}
    token = _binding.set(None if namespace is None else (namespace, brought))
    try:
        yield brought
    finally:
        _binding.reset(token)


class _Process:
    """Whether definitions of `__main__` are those of the program that runs in this process."""

    has_program = True


def note_worker() -> None:
    """Note that this process has no program: its actors come from others, and `__main__` is that of cells."""
    _Process.has_program = False


def has_program() -> bool:
    """Return whether a program runs in this process, a notebook or a script, and not only actors of others."""
    return _Process.has_program


def namespace_here() -> Names | None:
    """Return the variables that define the classes of an arriving value: of the program, or on a rank of its cells.

    None on a rank for what its actors receive: their definitions come with the messages.
    """
    if (binding := _binding.get()) is not None:
        return binding[0]
    return vars(sys.modules["__main__"]) if _Process.has_program else None


@contextmanager
def lent(namespace: Names | None, brought: Mapping[str, Any]) -> Iterator[None]:
    """Define variables in a namespace that has none of their names, and remove them at the end.

    Those that were set anew meanwhile remain: a function has written to a global.
    """
    missing = {} if namespace is None else {name: brought[name] for name in brought if name not in namespace}
    if namespace is None or not missing:
        yield
        return
    namespace.update(missing)
    try:
        yield
    finally:
        for name, value in missing.items():
            if name in namespace and namespace[name] is value:
                del namespace[name]


def reduce_function(reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return how to pickle a function that cloudpickle reduces to these six parts."""
    make, arguments, state, _, _, fill = reduced
    return _make_function, (make, arguments), (fill, state), None, None, _fill_function


def _make_function(make: Callable[..., FunctionType], arguments: tuple[Any, ...]) -> FunctionType:
    code, globals_, name, defaults, closure = arguments
    binding = _binding.get()
    if binding is None or globals_.get("__name__") != "__main__":
        return make(*arguments)
    return FunctionType(code, binding[0], name, defaults, closure)


def _fill_function(function: FunctionType, filling: tuple[Callable[..., None], tuple[Names, Names]]) -> None:
    fill, (attributes, slots) = filling
    binding = _binding.get()
    if binding is None or function.__globals__ is not binding[0]:
        fill(function, (attributes, slots))
        return
    namespace, brought = binding
    brought.update(slots["__globals__"])
    known = namespace.get("__builtins__", builtins)
    fill(function, (attributes, slots | {"__globals__": {}}))
    namespace["__builtins__"] = known  # cloudpickle has set it


def make_code(filename: str, source: str, arguments: tuple[Any, ...]) -> CodeType:
    """Return a code object, whose file does not exist here: keep its source for `inspect` and tracebacks."""
    linecache.cache.setdefault(filename, (len(source), None, source.splitlines(keepends=True), filename))
    return CodeType(*arguments)
