"""What tests of several files share: the limit of their waits, an actor that runs functions, and waits for ends."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import ProcessDied

PATIENCE = 60.0  # seconds until a wait that should be short is a failure, on a busy machine

# Workers cannot import this module, so its classes and functions travel by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Probe(Actor):
    """Runs functions that it receives, and keeps notes."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    @endpoint
    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    @endpoint
    def note(self, value: Any) -> None:
        self.notes.append(value)

    @endpoint
    def noted(self) -> list[Any]:
        return self.notes


def wait_forever() -> None:
    """Block the calling thread."""
    threading.Event().wait()


def environment(*names: str) -> list[str | None]:
    """Return the values of these variables in the process that runs this."""
    return [os.environ.get(name) for name in names]


def pids(probes: Any) -> list[int]:
    """Return the process ids of these probes, in rank order."""
    return list(probes.run.call(os.getpid).get(PATIENCE).values())


def await_death(probe: Any) -> str:
    """Return the error of a call that ends when the probe dies."""
    return str(probe.run.call_one(wait_forever).exception(PATIENCE))


def died(future: Any) -> ProcessDied:
    """Return the error of a call whose process dies."""
    with pytest.raises(ProcessDied) as caught:
        future.get(PATIENCE)
    return caught.value
