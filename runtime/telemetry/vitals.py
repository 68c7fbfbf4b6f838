"""The vitals of processes: what each reports itself, and what its host measures. Types only, and pure.

worker: a page in the run's folder <- reads - agent: measures, a batch a tick -> controller: `History`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal

import msgspec

VITALS = "vitals"  # name of the actor that a controller hosts for batches
Metric = Literal[
    "cpu",  # cores: 1.0 is one core wholly used
    "memory",  # bytes; pages that processes share are divided among them
    "gpu_memory",  # bytes
    "gpu",  # the share of the time in which its GPU was busy: 0 to 1
    "gpu_allocated",  # bytes in tensors of torch, as the process reports
    "gpu_peak",  # the most of them since the process began, or since its code has reset the peak
    "gpu_reserved",  # bytes that torch has reserved
    "gpu_free",  # bytes that are free on the GPU
    "gpu_power",  # watts
    "gpu_temperature",  # degrees Celsius
    "step",  # seconds of its last training step
    "queued",  # messages that wait in the queues of its actors
    "sent",  # messages a second
    "received",
    "bytes_sent",  # bytes a second
    "bytes_received",
]
METRICS: Final[tuple[Metric, ...]] = (
    *("cpu", "memory", "gpu_memory", "gpu"),
    *("gpu_allocated", "gpu_peak", "gpu_reserved", "gpu_free", "gpu_power", "gpu_temperature"),
    *("step", "queued"),
    *("sent", "received", "bytes_sent", "bytes_received"),
)
COLUMNS: Final = (*METRICS, "activity", "age")  # of a `VitalsBatch`
HISTORY_SECONDS = 300  # kept of each metric, a value a second
STALE_AFTER = 5.0  # seconds without a heartbeat
SECONDS = 1.0  # between two batches of a host, and between two heartbeats of a process
WATCHED_SECONDS = 0.25  # between two batches while a dashboard is open
# The same while everything on the host is idle and no dashboard is open: so a process wakes less than once a second,
# with room for an answer. The sum is well below STALE_AFTER.
IDLE_BATCH_SECONDS = 2.5
IDLE_BEAT_SECONDS = 1.25
LATE_AFTER = 2.0  # seconds without a heartbeat, after which a host is measured each second again


class Activity(IntEnum):
    """The activity of a process's main thread, as the process reports it."""

    IDLE = 0
    RUNNING = 1
    IN_COLLECTIVE = 2
    PAUSED = 3  # in the debugger, or at a prompt


@dataclass(frozen=True)
class Vitals:
    """The current vitals of the ranks of a mesh, in the order of its ranks.

    `metrics`: float32 arrays by name; NaN means unknown. `activity`: uint8, of `Activity`. `age`: float32, seconds
    since the last heartbeat of the process; infinite if there was none.
    """

    metrics: Mapping[Metric, Any]
    activity: Any
    age: Any


@dataclass(frozen=True, slots=True)
class ActorLoad:
    """The load of an actor: the number of waiting messages, and the running endpoint (empty: none)."""

    name: str
    queued: int
    endpoint: str = ""


@dataclass(frozen=True, slots=True)
class ProcessDetail:
    """What a process reports in words.

    `collective`: the one it is in, such as `all_reduce`; `pause`: how it waits for the user, such as `in the debugger`.
    Each is empty if it does not apply.
    """

    node: str
    pid: int
    host: str
    actors: tuple[ActorLoad, ...] = ()
    collective: str = ""
    pause: str = ""


class ProcessReport(msgspec.Struct, frozen=True, array_like=True):
    """What a process reports of itself in words.

    `actors`: name, number of waiting messages, and running endpoint. `gpu`: the UUID of the GPU that it uses.
    """

    pid: int
    actors: tuple[tuple[str, int, str], ...] = ()
    collective: str = ""
    pause: str = ""
    gpu: str = ""


decode_process_report = msgspec.msgpack.Decoder(ProcessReport).decode


class VitalsBatch(msgspec.Struct, frozen=True, array_like=True):
    """The measurements of an agent of the processes of its host at one time.

    `numbers` are float32 in the byte order of these machines, `COLUMNS` for each node; an age is in seconds by the
    clock of that host. `incarnations`: how often each process had started before. `words`: `ProcessReport` as msgpack,
    for the nodes where they have changed.
    """

    host: str
    nodes: tuple[str, ...]
    incarnations: tuple[int, ...]
    numbers: bytes
    words: dict[str, bytes] = {}
