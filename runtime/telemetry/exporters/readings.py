"""The exported measurements of a mesh, for any monitoring system: their names and units. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.telemetry.vitals import Activity, Metric, Vitals


class MetricsError(MeshbookError):
    """Metrics that cannot be exported: a library is missing, a port is taken."""


@dataclass(frozen=True)
class MeshReading:
    """The state of the ranks of a mesh at one time. `ranks`, `hosts` and `is_up` have the order of `vitals`."""

    mesh: str
    ranks: Sequence[int]
    hosts: Sequence[str]
    is_up: Sequence[bool]
    vitals: Vitals


class LoggedValue(NamedTuple):
    """The last value that a rank has logged of a metric by `meshbook.log`; the notebook's own process is rank -1."""

    metric: str
    rank: int
    value: float


Read = Callable[[], Sequence[MeshReading]]
ReadLogged = Callable[[], Sequence[LoggedValue]]


class Measurement(NamedTuple):
    """A quantity that is exported for each rank.

    `name` is Prometheus' name, with the unit in it by its conventions; `dotted` and `unit` (UCUM) are OpenTelemetry's.
    """

    name: str
    dotted: str
    unit: str
    description: str


class Sample(NamedTuple):
    """A value of one rank; `activity` only if that is the measurement."""

    mesh: str
    rank: int
    host: str
    value: float
    activity: str = ""


UP: Final = Measurement("meshbook_rank_up", "meshbook.rank.up", "1", "1 if the process of the rank is running, else 0")
AGE: Final = Measurement(
    "meshbook_rank_heartbeat_age_seconds",
    "meshbook.rank.heartbeat.age",
    "s",
    "Time since the last heartbeat of the process",
)
ACTIVITY: Final = Measurement(
    "meshbook_rank_activity", "meshbook.rank.activity", "1", "1 for the current activity of the main thread, else 0"
)
OF_METRICS: Final[dict[Metric, Measurement]] = {
    "cpu": Measurement("meshbook_rank_cpu_cores", "meshbook.rank.cpu", "{cpu}", "CPU cores in use by the process"),
    "memory": Measurement(
        *("meshbook_rank_memory_bytes", "meshbook.rank.memory", "By"),
        "Memory of the process; shared pages are divided among the processes that share them",
    ),
    "gpu_memory": Measurement(
        "meshbook_rank_gpu_memory_bytes", "meshbook.rank.gpu.memory", "By", "GPU memory in use by the process"
    ),
    "gpu": Measurement(
        "meshbook_rank_gpu_utilization_ratio",
        "meshbook.rank.gpu.utilization",
        "1",
        "Fraction of time in which the GPU of the rank was busy",
    ),
    "gpu_allocated": Measurement(
        *("meshbook_rank_gpu_allocated_bytes", "meshbook.rank.gpu.allocated", "By", "GPU memory in tensors of torch")
    ),
    "gpu_peak": Measurement(
        *("meshbook_rank_gpu_peak_bytes", "meshbook.rank.gpu.peak", "By", "Peak of the GPU memory in tensors of torch")
    ),
    "gpu_reserved": Measurement(
        *("meshbook_rank_gpu_reserved_bytes", "meshbook.rank.gpu.reserved", "By", "GPU memory that torch has reserved")
    ),
    "gpu_free": Measurement(
        *("meshbook_rank_gpu_free_bytes", "meshbook.rank.gpu.free", "By", "Free memory of the GPU of the rank")
    ),
    "gpu_power": Measurement(
        *("meshbook_rank_gpu_power_watts", "meshbook.rank.gpu.power", "W", "Power draw of the GPU of the rank")
    ),
    "gpu_temperature": Measurement(
        *("meshbook_rank_gpu_temperature_celsius", "meshbook.rank.gpu.temperature", "Cel"),
        "Temperature of the GPU of the rank",
    ),
    "step": Measurement(
        "meshbook_rank_step_duration_seconds", "meshbook.rank.step.duration", "s", "Duration of the last training step"
    ),
    "queued": Measurement(
        "meshbook_rank_queued_messages",
        "meshbook.rank.queued",
        "{message}",
        "Messages waiting in the queues of the actors of the rank",
    ),
    "sent": Measurement(
        "meshbook_rank_sent_messages_per_second", "meshbook.rank.sent", "{message}/s", "Messages sent per second"
    ),
    "received": Measurement(
        "meshbook_rank_received_messages_per_second",
        "meshbook.rank.received",
        "{message}/s",
        "Messages received per second",
    ),
    "bytes_sent": Measurement(
        "meshbook_rank_sent_bytes_per_second", "meshbook.rank.sent.bytes", "By/s", "Bytes of messages sent per second"
    ),
    "bytes_received": Measurement(
        "meshbook_rank_received_bytes_per_second",
        "meshbook.rank.received.bytes",
        "By/s",
        "Bytes of messages received per second",
    ),
}
LOGGED: Final = Measurement(
    "meshbook_logged_value", "meshbook.logged.value", "1", "Last value of a metric that the rank has logged"
)
MEASUREMENTS: Final = (UP, AGE, ACTIVITY, *OF_METRICS.values())
_METRIC_OF: Final = {measurement: metric for metric, measurement in OF_METRICS.items()}


def samples_of(measurement: Measurement, readings: Sequence[MeshReading]) -> Iterator[Sample]:
    """Yield the known values of all ranks. A dead rank has only the value that it is not up."""
    for reading in readings:
        if measurement is ACTIVITY:
            yield from _activities(reading)
            continue
        values = _values(measurement, reading)
        for rank, host, is_up, value in zip(reading.ranks, reading.hosts, reading.is_up, values, strict=True):
            if math.isfinite(value) and (is_up or measurement is UP):
                yield Sample(reading.mesh, rank, host, float(value))


def _values(measurement: Measurement, reading: MeshReading) -> Sequence[float]:
    if measurement is UP:
        return [float(is_up) for is_up in reading.is_up]
    if measurement is AGE:
        return list(reading.vitals.age)
    found = reading.vitals.metrics.get(_METRIC_OF[measurement])
    return list(found) if found is not None else [math.nan] * len(reading.ranks)


def _activities(reading: MeshReading) -> Iterator[Sample]:
    rows = zip(reading.ranks, reading.hosts, reading.is_up, reading.vitals.activity, reading.vitals.age, strict=True)
    for rank, host, is_up, activity, age in rows:
        if is_up and math.isfinite(age):
            for each in Activity:
                yield Sample(reading.mesh, rank, host, float(each == activity), each.name.lower())
