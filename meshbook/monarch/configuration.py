"""`monarch.config`: Monarch's keys over meshbook's settings.

A key with an equivalent changes `Settings` for processes that are started from then on. All keys that were set are
passed on in `Settings.extra`, so that a worker sees the configuration of its spawning. Running processes keep their
settings. `parametrize_config` runs a pytest test under several configurations.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from meshbook.monarch.keys import KEYS, Value, find_key
from meshbook.runtime.config import OVERRIDES, RUN_WIDE, current_settings, inherited_settings
from meshbook.runtime.hosts.session import running_session


def configure(**values: Any) -> None:
    """Set these keys for processes that are started from now on; either all are set or none.

    Raises ValueError for a key that Monarch does not have, TypeError for a value of the wrong type.
    """
    changes = _changes(_checked(values))
    _warn_if_late(values, stacklevel=3)
    OVERRIDES.set(changes)


@contextlib.contextmanager
def configured(**values: Any) -> Iterator[dict[str, Any]]:
    """Set these keys while the block or the decorated function runs; yields the value of `get_global_config`.

    Meshes that are spawned in the block keep its settings. It overrides `configure`. Raises what `configure` raises.
    """
    changes = _changes(_checked(values))
    _warn_if_late(values, stacklevel=4)  # contextlib's frames are between this generator and the block
    with OVERRIDES.during(changes):
        yield get_global_config()


def get_global_config() -> dict[str, Any]:
    """Return every key and its value for processes started from now on; in a worker, those passed on to it."""
    settings = current_settings()
    return {name: key.value_in(settings) for name, key in KEYS.items()}


def get_runtime_config() -> dict[str, Any]:
    """Return the keys that the program has set, and their values."""
    return {name: KEYS[name].shown(value) for name, value in current_settings().extra.items() if name in KEYS}


def clear_runtime_config() -> None:
    """Clear the keys that this process has set, also those of blocks that still run."""
    OVERRIDES.clear()


def _checked(values: Mapping[str, Any]) -> dict[str, Value]:
    return {name: find_key(name).checked(value) for name, value in values.items()}


def _changes(values: Mapping[str, Value]) -> dict[str, Any]:
    changes: dict[str, Any] = {"extra": dict(values)}
    for name, value in values.items():
        changes |= KEYS[name].changes(value)
    return changes


def _warn_if_late(names: Iterable[str], stacklevel: int) -> None:
    late = [name for name in names if KEYS[name].field in RUN_WIDE]
    if late and (running_session() is not None or inherited_settings() is not None):
        warnings.warn(
            f"{', '.join(late)}: fixed for the current run, which has already started; takes effect in the next run, "
            f"after meshbook.close_session()",
            stacklevel=stacklevel,
        )


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
