"""`get_meter` and `traced` of `monarch.actor`; its `span` is `meshbook.span`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar, overload

from meshbook.runtime.telemetry.spans import span

P = ParamSpec("P")
R = TypeVar("R")


@overload
def traced(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def traced(*, name: str | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def traced(function: Callable[..., Any] | None = None, /, *, name: str | None = None) -> Any:
    """Record a span for each call of a function, sync or async, under its own or another name."""
    if function is None:
        return functools.partial(_trace, name=name)
    return _trace(function, name)


def _trace(function: Callable[..., Any], name: str | None) -> Callable[..., Any]:
    called = name or function.__qualname__

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with span(called):
            return function(*args, **kwargs)

    @functools.wraps(function)
    async def run_async(*args: Any, **kwargs: Any) -> Any:
        with span(called):
            return await function(*args, **kwargs)

    return run_async if inspect.iscoroutinefunction(function) else run


class Meter:
    """The program's OpenTelemetry meter: counters and histograms, by the provider that the program has set."""

    def __init__(self, meter: Any) -> None:
        self._meter = meter
        self.create_counter = meter.create_counter
        self.create_up_down_counter = meter.create_up_down_counter
        self.create_histogram = meter.create_histogram

    @property
    def name(self) -> str:
        """The name `monarch`."""
        return str(self._meter.name)

    def create_gauge(self, *arguments: Any, **keywords: Any) -> NoReturn:
        """Raise NotImplementedError, as Monarch does."""
        raise NotImplementedError("the meter does not support gauges; use a counter, an up-down counter or a histogram")

    create_observable_counter = create_observable_gauge = create_observable_up_down_counter = create_gauge


def get_meter() -> Meter:
    """Return the meter of this process; ModuleNotFoundError if OpenTelemetry is not installed."""
    try:
        from opentelemetry import metrics  # no requirement of meshbook
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"get_meter() requires OpenTelemetry; run pip install 'meshbook[metrics]' ({error})"
        ) from error
    return Meter(metrics.get_meter("monarch"))
