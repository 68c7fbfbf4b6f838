"""How processes are, in numbers: what each says of itself, and what its host measures of it. The words of it, and pure.

worker: a page in the run's folder <- reads - agent: measures, a batch a tick -> controller: `History`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal

import msgspec

VITALS = "vitals"  # the actor that a controller hosts for this
Metric = Literal[
    "cpu",  # cores: 1.0 is one core wholly used
    "memory",  # bytes; of pages that processes share, each has its share
    "gpu_memory",  # bytes
    "gpu",  # the share of the time in which its GPU was at work: 0 to 1
    "step",  # seconds that its last step of training took
    "queued",  # messages that wait in the queues of its actors
    "sent",  # messages a second
    "received",
    "bytes_sent",  # bytes a second
    "bytes_received",
]
METRICS: Final[tuple[Metric, ...]] = (
    *("cpu", "memory", "gpu_memory", "gpu", "step", "queued"),
    *("sent", "received", "bytes_sent", "bytes_received"),
)
COLUMNS: Final = (*METRICS, "activity", "age")  # of a `VitalsBatch`
HISTORY_SECONDS = 300  # that are kept of each metric, a value a second
STALE_AFTER = 5.0  # seconds without a sign of life
SECONDS = 1.0  # between two batches of a host, and between two heartbeats of a process
WATCHED_SECONDS = 0.25  # between two batches while a dashboard is open
# The same while everything on the host is idle and no dashboard is open: so a process wakes less than once a second,
# with room for an answer. The sum is well below STALE_AFTER.
IDLE_BATCH_SECONDS = 2.5
IDLE_BEAT_SECONDS = 1.25
LATE_AFTER = 2.0  # seconds without a heartbeat, after which a host is measured each second again


class Activity(IntEnum):
    """What the main thread of a process is at, as it says itself."""

    IDLE = 0
    RUNNING = 1
    IN_COLLECTIVE = 2
    PAUSED = 3  # in the debugger, or at a prompt


@dataclass(frozen=True)
class Vitals:
    """How the ranks of a mesh are now, a value for each in the order of its ranks.

    `metrics`: float32 arrays by name; NaN is not known. `activity`: uint8, of `Activity`. `age`: float32, seconds since
    the process last gave a sign of life; infinite where it has given none.
    """

    metrics: Mapping[Metric, Any]
    activity: Any
    age: Any


@dataclass(frozen=True, slots=True)
class ActorLoad:
    """An actor of a process: how many messages wait for it, and the endpoint that runs (empty: none)."""

    name: str
    queued: int
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class ProcessDetail:
    """What is told of one process in words. `collective`: in which it stands, `all_reduce`; `pause`: how it waits for a
    person, `in the debugger`; both empty where it does not."""

    node: str
    pid: int
    host: str
    actors: tuple[ActorLoad, ...] = ()
    collective: str = ""
    pause: str = ""


class ProcessWords(msgspec.Struct, frozen=True, array_like=True):
    """What a process says of itself in words; `actors`: name, messages that wait, and the endpoint that runs."""

    pid: int
    actors: tuple[tuple[str, int, str], ...] = ()
    collective: str = ""
    pause: str = ""


class VitalsBatch(msgspec.Struct, frozen=True, array_like=True):
    """What an agent has measured of the processes of its host at one time.

    `numbers` are float32 in the byte order of these machines, `COLUMNS` for each node; an age is in seconds by the
    clock of that host. `incarnations`: how often each had begun before.
    `words`: `ProcessWords` as msgpack, of those where they have changed.
    """

    host: str
    nodes: tuple[str, ...]
    incarnations: tuple[int, ...]
    numbers: bytes
    words: dict[str, bytes] = {}
