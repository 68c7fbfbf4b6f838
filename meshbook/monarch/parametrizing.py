"""`monarch.config.parametrize_config`: a pytest test run under several configurations. Only tests use it."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshbook.monarch.configuration import configured

Function = Callable[..., Any]


def parametrize_config(**options: Iterable[Any]) -> Callable[[Function], Function]:
    """Run a test, sync or async, once under each combination of these values; ValueError without keys."""
    # Sorted: the order of a set differs between processes, and pytest-xdist needs the same tests in each.
    return _parametrized(options, itertools.product(*(sorted(values, key=repr) for values in options.values())))


def parametrize_config_pointwise(**options: Sequence[Any]) -> Callable[[Function], Function]:
    """Run a test with the first values of all keys, then the second ones, and so on; ValueError for uneven lengths."""
    return _parametrized(options, zip(*options.values(), strict=True))


def _parametrized(names: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> Callable[[Function], Function]:
    import pytest  # no requirement of meshbook: code that decorates a test has it

    keys = tuple(names)
    if not keys:
        raise ValueError("at least one configuration key with its values is required")
    cases = [dict(zip(keys, row, strict=True)) for row in rows]
    argument = "config_of_" + "_and_".join(keys)  # a name for each decorator, as they can be stacked
    mark = pytest.mark.parametrize(argument, cases, ids=["-".join(map(str, case.values())) for case in cases])
    return lambda function: mark(_under(function, argument))


def _under(function: Function, argument: str) -> Function:
    """Return the test with one more argument: the configuration that it runs under."""

    @functools.wraps(function)
    def run(*args: Any, **keywords: Any) -> Any:
        with configured(**keywords.pop(argument)):
            return function(*args, **keywords)

    @functools.wraps(function)
    async def run_async(*args: Any, **keywords: Any) -> Any:
        with configured(**keywords.pop(argument)):
            return await function(*args, **keywords)

    made: Function = run_async if inspect.iscoroutinefunction(function) else run
    signature = inspect.signature(function)
    own = inspect.Parameter(argument, inspect.Parameter.KEYWORD_ONLY)
    parameters = sorted([*signature.parameters.values(), own], key=lambda parameter: parameter.kind)
    vars(made)["__signature__"] = signature.replace(parameters=parameters)  # pytest reads this
    return made
