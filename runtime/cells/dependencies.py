"""Functions of views with requirements on their rank: `@require("numpy")`, `@depend(has_gpu)`."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from meshbook.runtime.cells.function_calls import bind
from meshbook.runtime.errors import MeshbookError


class UnmetDependency(MeshbookError):
    """The rank does not meet a task's requirements: the task is tried on another rank."""


class ImpossibleDependency(UnmetDependency):
    """A task can never begin: a call that it depends on has failed, or no rank has run those that it follows."""


class Dependent:
    """A function that is called on a rank only if its check does not return False there."""

    def __init__(self, function: Any, check: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
        self.f = function
        self.df = check
        self.dargs = arguments
        self.dkwargs = keywords
        self.__name__ = getattr(function, "__name__", "f")

    def bind_to(self, names: dict[str, Any]) -> Dependent:
        """Return the same on a rank with these names."""
        check = bind(self.df, names)
        return _Checked(bind(self.f, names), check, *self.dargs, **self.dkwargs)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.f(*arguments, **keywords)


class _Checked(Dependent):
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self.df(*self.dargs, **self.dkwargs) is False:
            raise UnmetDependency(
                f"{getattr(self.df, '__name__', 'the dependency')} returned False for {self.__name__}"
            )
        return self.f(*arguments, **keywords)


class Requirements:
    """Modules to import, and values to set, among the variables of a rank."""

    def __init__(self, modules: tuple[str, ...], values: dict[str, Any]) -> None:
        self._modules = modules
        self._values = values
        self._names: dict[str, Any] = {}

    def bind_to(self, names: dict[str, Any]) -> Requirements:
        """Return the same on a rank."""
        bound = Requirements(self._modules, self._values)
        bound._names = names
        with contextlib.suppress(UnmetDependency):  # each call raises it
            bound()  # now, so that its names stay: those that are missing at a call are lent for that call only
        return bound

    def __call__(self) -> bool:
        for module in self._modules:
            try:
                importlib.import_module(module)
            except ImportError as error:
                raise UnmetDependency(f"cannot import {module}: {error}") from None
            self._names[module.partition(".")[0]] = importlib.import_module(module.partition(".")[0])
        for name, value in self._values.items():
            self._names[name] = value
        return True


class depend:  # named as in ipyparallel
    """`@depend(check, ...)`: call the function only on ranks where `check(...)` is not False."""

    def __init__(self, check: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
        self._check = check
        self._arguments = arguments
        self._keywords = keywords

    def __call__(self, function: Any) -> Dependent:
        return Dependent(function, self._check, *self._arguments, **self._keywords)


def require(*objects: Any, **values: Any) -> depend:
    """`@require("numpy", helper, factor=3)`: modules and values that ranks have before the function is called."""
    modules = []
    for each in objects:
        if isinstance(each, str | ModuleType):
            modules.append(each if isinstance(each, str) else each.__name__)
        elif hasattr(each, "__name__"):
            values[each.__name__] = each
        else:
            raise TypeError(
                f"require() takes modules and functions; pass a {type(each).__name__} by name: require(x=...)"
            )
    return depend(Requirements(tuple(modules), values))
