"""A summary of a rank's namespace: for completion while the rank itself cannot answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshbook.runtime.cells.completing import kind_of
from meshbook.runtime.clock import sleep, thread_time

MOST_SECONDS = 0.05  # of processor time: on a busy machine a snapshot is late, not incomplete
MOST_ATTRIBUTES = 400  # of one object


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The kinds of names, and the public attributes of their objects, as far as time allowed."""

    kinds: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def take_snapshot(namespace: Mapping[str, Any], names: Iterable[str]) -> Snapshot:
    """Take a snapshot of these names, the newest first. Other threads may run between two of them."""
    end = thread_time() + MOST_SECONDS
    kinds: dict[str, str] = {}
    attributes: dict[str, tuple[str, ...]] = {}
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}  # the attributes of one class are sent once
    for name in reversed(list(names)):
        if name not in namespace:
            continue
        value = namespace[name]
        kinds[name] = kind_of(value)
        if thread_time() < end:
            found = _public_attributes(value)
            attributes[name] = shared.setdefault(found, found)
            sleep(0)  # the main thread may have begun its next cell
    return Snapshot(kinds, attributes)


def _public_attributes(value: Any) -> tuple[str, ...]:
    try:
        return tuple(name for name in dir(value) if not name.startswith("_"))[:MOST_ATTRIBUTES]
    except Exception:  # of a `__dir__` of the user's
        return ()
