"""What a simulated mesh does when: the cost of operations, a time line for each rank and stream, and memory.

It has no tensors and no clock: `simulator` says which operations there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

MICROSECONDS: Final = 1e6
CONTROLLER: Final = "controller"


@dataclass(frozen=True, slots=True)
class Costs:
    """The speed of the simulated hardware. Seconds, bytes, and floating point operations.

    The defaults are of the order of one GPU of 2023, eight of which share a host.
    """

    issue: float = 10e-6  # the controller, for a command
    launch: float = 5e-6  # of an operation on a rank
    flops: float = 300e12  # a second
    memory: float = 2e12  # bytes a second that an operation reads and writes
    latency: float = 10e-6  # of a message
    link: float = 200e9  # bytes a second between the ranks of a host
    network: float = 25e9  # bytes a second of a rank to another host

    def operation(self, flops: int, nbytes: int) -> float:
        """Return the duration of an operation that is bound by computing or by memory."""
        return self.launch + max(flops / self.flops, nbytes / self.memory)

    def collective(self, kind: str, nbytes: int, ranks: int, *, crosses_hosts: bool) -> float:
        """Return the duration of a collective in a ring; `nbytes` is the size of each rank's tensor.

        `kind` is "all_reduce", "all_gather", "reduce_scatter" or "all_to_all".
        """
        parts = {"all_reduce": 2 / ranks, "all_gather": 1.0, "reduce_scatter": 1 / ranks, "all_to_all": 1 / ranks}
        rounds = (ranks - 1) * (2 if kind == "all_reduce" else 1)
        sent = parts[kind] * (ranks - 1) * nbytes
        return rounds * self.latency + sent / (self.network if crosses_hosts else self.link)

    def transfer(self, nbytes: int, *, crosses_hosts: bool) -> float:
        """Return the duration of a message from one rank to another."""
        return self.latency + nbytes / (self.network if crosses_hosts else self.link)


@dataclass(frozen=True, slots=True)
class TimedOperation:
    """An operation on a rank. `start` and `duration` are in seconds."""

    rank: int
    stream: str
    name: str
    start: float
    duration: float
    line: str  # of the program
    kind: str  # "operation", "collective" or "transfer"
    label: str = ""  # what the program calls this part of itself


@dataclass(frozen=True, slots=True)
class RankMemory:
    """The peak of a rank's tensors in bytes, and the lines that made them, the largest first."""

    rank: int
    peak: int
    by_line: dict[str, int]


@dataclass
class Schedule:
    """Runs operations in the order of each stream. A value that another stream made has to be ready."""

    costs: Costs
    hosts: Sequence[int]  # the host of each rank
    operations: list[TimedOperation] = field(default_factory=list)
    issued: list[tuple[str, float]] = field(default_factory=list)  # name and start of each command
    controller: float = 0.0  # the time of the controller
    label: str = ""  # of the operations to come
    _free: dict[tuple[int, str], float] = field(default_factory=dict)  # when a stream of a rank can begin
    _ready: dict[int, dict[int, float]] = field(default_factory=dict)  # value -> rank -> when it is there
    _sent: dict[tuple[int, int], float] = field(default_factory=dict)  # tag and sender -> when it was sent

    def issue(self, name: str) -> None:
        """Record that the controller issues a command."""
        self.issued.append((name, self.controller))
        self.controller += self.costs.issue

    def run(
        self,
        groups: Iterable[Sequence[int]],
        stream: str,
        name: str,
        duration: float,
        *,
        line: str = "",
        inputs: Iterable[int] = (),
        kind: str = "operation",
    ) -> None:
        """Run an operation on ranks; those of one group begin together."""
        inputs = list(inputs)
        for ranks in groups:
            start = max(self.beginning(rank, stream, inputs) for rank in ranks)
            for rank in ranks:
                self._add(TimedOperation(rank, stream, name, start, duration, line, kind, self.label))

    def send(self, tag: int, rank: int, stream: str, *, line: str, inputs: Iterable[int]) -> None:
        """Begin to send a value; the sender continues at once."""
        start = self.beginning(rank, stream, inputs)
        self._sent[tag, rank] = start
        self._add(TimedOperation(rank, stream, "send", start, self.costs.launch, line, "transfer", self.label))

    def receive(self, tag: int, sender: int, rank: int, stream: str, nbytes: int, *, line: str) -> None:
        """Receive what was sent with this tag."""
        start = max(self._sent[tag, sender], self.beginning(rank, stream))
        duration = self.costs.transfer(nbytes, crosses_hosts=self.hosts[sender] != self.hosts[rank])
        name = f"receive from rank {sender}"
        self._add(TimedOperation(rank, stream, name, start, duration, line, "transfer", self.label))

    def beginning(self, rank: int, stream: str, inputs: Iterable[int] = ()) -> float:
        """Return when an operation with these inputs can begin."""
        ready = (self._ready[each].get(rank, 0.0) for each in inputs if each in self._ready)
        return max(self._free.get((rank, stream), 0.0), self.controller, *ready)

    def _add(self, operation: TimedOperation) -> None:
        self.operations.append(operation)
        self._free[operation.rank, operation.stream] = operation.start + operation.duration

    def make_ready(self, values: Iterable[int], ranks: Sequence[int], stream: str) -> None:
        """Record that values are there once the stream has run what it has."""
        at = {rank: self._free.get((rank, stream), 0.0) for rank in ranks}
        for value in values:
            self._ready[value] = {**self._ready.get(value, {}), **at}

    def forget(self, value: int) -> None:
        self._ready.pop(value, None)

    def wait(self, rank: int | None = None) -> None:
        """Let the controller wait until a rank has run everything; None: until all have."""
        ends = (end for (each, _), end in self._free.items() if rank is None or each == rank)
        self.controller = max(self.controller, *ends, 0.0)

    @property
    def seconds(self) -> float:
        """When the last operation ends."""
        return max((each.start + each.duration for each in self.operations), default=0.0)


class MemoryLog:
    """The tensors of all ranks as they come and go. Views share the memory of their base."""

    def __init__(self) -> None:
        self._log: list[tuple[Sequence[int], str, int]] = []  # ranks, line, bytes; negative: given back
        self._live: dict[int, tuple[int, Sequence[int], str, int]] = {}  # memory -> users, ranks, line, bytes

    def take(self, memory: int, nbytes: int, ranks: Sequence[int], line: str) -> None:
        """Add a user of a memory, which begins with the first one."""
        users, *rest = self._live.get(memory, (0, ranks, line, nbytes))
        if not users:
            self._log.append((ranks, line, nbytes))
        self._live[memory] = (users + 1, *rest)  # type: ignore[assignment]

    def drop(self, memory: int) -> None:
        """Remove a user of a memory; without users it ends."""
        users, ranks, line, nbytes = self._live.pop(memory)
        if users > 1:
            self._live[memory] = (users - 1, ranks, line, nbytes)
        else:
            self._log.append((ranks, line, -nbytes))

    def of_rank(self, rank: int) -> RankMemory:
        """Return the peak of a rank; O(n) in the tensors that the program has made."""
        own = [(line, nbytes) for ranks, line, nbytes in self._log if rank in ranks]
        peak = total = end = 0
        for index, (_, nbytes) in enumerate(own, 1):
            total += nbytes
            if total > peak:
                peak, end = total, index
        by_line: dict[str, int] = {}
        for line, nbytes in own[:end]:
            by_line[line] = by_line.get(line, 0) + nbytes
        largest = sorted(((line, nbytes) for line, nbytes in by_line.items() if nbytes), key=lambda pair: -pair[1])
        return RankMemory(rank, peak, dict(largest))


def chrome_trace(schedule: Schedule, names: Mapping[int, str], *, ranks: bool = True, controller: bool = True) -> str:
    """Return the time lines in the format of Chrome's tracing, which Perfetto shows: a process for each rank."""
    events: list[dict[str, Any]] = []
    if controller:
        events.append({"ph": "M", "name": "process_name", "pid": -1, "args": {"name": CONTROLLER}})
        for name, start in schedule.issued:
            times = {"ts": start * MICROSECONDS, "dur": schedule.costs.issue * MICROSECONDS}
            events.append({"ph": "X", "name": name, "cat": "issue", "pid": -1, "tid": CONTROLLER, **times})
    if ranks:
        events += ({"ph": "M", "name": "process_name", "pid": each, "args": {"name": names[each]}} for each in names)
        for one in schedule.operations:
            times = {"ts": one.start * MICROSECONDS, "dur": one.duration * MICROSECONDS}
            args = {"line": one.line} | ({"meta": one.label} if one.label else {})
            where = {"pid": one.rank, "tid": one.stream, "args": args}
            events.append({"ph": "X", "name": one.name, "cat": one.kind, **where, **times})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
