"""`Simulator`: a program runs on a mesh that does not exist, and yields a trace, a duration and the memory of ranks.

The engine is the real one, except that each command runs here at once, on meta tensors, which have no data. All ranks
run the same commands, so one table of values stands for all of them. Values that the program asks for are 0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from meshbook.runtime.actor.future import Future
from meshbook.runtime.geometry import Extent, MeshTrait, Region
from meshbook.runtime.tensor.device_mesh import DeviceMesh
from meshbook.runtime.tensor.engine import LOCALLY, Engine
from meshbook.runtime.tensor.executor import Executor, Member, ids_in
from meshbook.runtime.tensor.groups import Grouping, Groups, Rendezvous
from meshbook.runtime.tensor.lanes import Lane, OpaqueRef
from meshbook.runtime.tensor.metadata import META, Meta, Unknown, infer
from meshbook.runtime.tensor.operators import operator_of
from meshbook.runtime.tensor.schedule import Costs, MemoryLog, RankMemory, Schedule, chrome_trace
from meshbook.runtime.tensor.streams import MAIN, Stream
from meshbook.runtime.tensor.templates import FIRST_SLOT, Command
from meshbook.runtime.traces import Place, SourceLine

_LABEL: ContextVar[str] = ContextVar("label", default="")
_ITEM = torch.ops.aten._local_scalar_dense.default
_DEFINITIONS: Final = frozenset({"template", "forget", "function", "group", "record", "forget_recording", "delete"})


class SimulatorTraceMode(Enum):
    """What a trace has: all, the ranks' streams alone, the controller alone, or nothing. The values are texts."""

    EVERYTHING = "everything"
    STREAM_ONLY = "streams"
    CONTROLLER_ONLY = "controller"
    DISABLED = "disabled"


@contextlib.contextmanager
def set_meta(label: Any) -> Iterator[None]:
    """While the block runs, the operations that it issues have this label in the trace of a simulation, as text."""
    token = _LABEL.set(str(label))
    try:
        yield
    finally:
        _LABEL.reset(token)


class Simulator:
    """A simulated mesh of `hosts` times `gpus` ranks, in the per-rank view; `dims` are its dimensions.

        simulator = Simulator(hosts=2, gpus=8, trace_path="trace.json")
        with simulator.mesh.activate():
            train()
        simulator.mesh.exit()  # writes the trace
        simulator.seconds, simulator.memory(rank=0)

    A tensor is freed as soon as the program drops it. The values that a program fetches are 0. An operation whose
    shape depends on values raises NotImplementedError, and so does a remote function that has to be asked for it.
    """

    def __init__(
        self,
        hosts: int = 1,
        gpus: int = 1,
        *,
        costs: Costs | None = None,
        trace_mode: SimulatorTraceMode | str = SimulatorTraceMode.EVERYTHING,
        trace_path: str | Path | None = None,
        dims: tuple[str, str] = ("hosts", "gpus"),
    ) -> None:
        try:
            self._mode = SimulatorTraceMode(trace_mode)
        except ValueError:
            known = ", ".join(mode.value for mode in SimulatorTraceMode)
            raise ValueError(f"trace_mode is one of {known}, not {trace_mode!r}") from None
        self._path = trace_path
        ranks = SimulatedRanks(Extent(dims, (hosts, gpus)).region)
        self.schedule = Schedule(costs or Costs(), [rank // gpus for rank in range(hosts * gpus)])
        self._engine = SimulatedEngine(ranks, self.schedule)
        self._engine.at_close = self._write
        self.mesh = self._engine.meshes[ranks.region] = DeviceMesh(self._engine, self._engine.actors)

    @property
    def seconds(self) -> float:
        """How long the program takes on the simulated ranks."""
        return self.schedule.seconds

    def memory(self, rank: int = 0) -> RankMemory:
        """Return the peak of a rank's memory, and the lines whose tensors it consists of."""
        self._engine.flush()
        return self._engine.memory.of_rank(rank)

    def trace(self) -> str:
        """Return the time lines in Chrome's format of traces: a process for each rank, a thread for each stream."""
        extent = self.mesh.extent
        points = {rank: dict(extent.point(rank)) for rank in range(len(self.mesh))}
        names = {
            rank: f"rank {rank} ({', '.join(f'{dim}={at}' for dim, at in point.items())})"
            for rank, point in points.items()
        }
        is_whole = self._mode is SimulatorTraceMode.EVERYTHING
        has_ranks = is_whole or self._mode is SimulatorTraceMode.STREAM_ONLY
        has_controller = is_whole or self._mode is SimulatorTraceMode.CONTROLLER_ONLY
        return chrome_trace(self.schedule, names, ranks=has_ranks, controller=has_controller)

    def _write(self) -> None:
        if self._path is not None and self._mode is not SimulatorTraceMode.DISABLED:
            Path(self._path).write_text(self.trace(), encoding="utf-8")


class SimulatedRanks(MeshTrait):
    """Stands for the processes, and for the actors of the engine on them."""

    name = "simulation"
    nodes = ()
    _keys: frozenset[str] = frozenset()

    def __init__(self, region: Region) -> None:
        self._region = region

    @property
    def region(self) -> Region:
        return self._region

    def _with_region(self, region: Region) -> SimulatedRanks:
        return SimulatedRanks(region)

    def spawn(self, *_: Any) -> SimulatedRanks:
        return self

    def note_tensor_engine(self, _: Any) -> None:
        """Do nothing: no dashboard shows a simulation."""

    def after_heal(self, _: Any) -> None:
        """Do nothing: simulated ranks do not die."""

    def stop(self, reason: str) -> None:
        """Do nothing: there are no actors."""

    def to_table(self) -> str:
        return f"{self.name}: {', '.join(f'{dim}={size}' for dim, size in self.extent.items())}"


class SimulatedEngine(Engine):
    """An engine whose commands run in this thread, when they are issued."""

    def __init__(self, ranks: Any, schedule: Schedule) -> None:
        super().__init__(ranks)
        self.memory = MemoryLog()
        self.has_gpus_to_name = False
        self.at_close: Any = None
        self._schedule = schedule
        self._executor = SimulatedExecutor(schedule, self.memory, len(ranks))

    def _find_node(self) -> Any:
        return SimpleNamespace(loop=None)

    def hand_over(self, *_: Any, **__: Any) -> None:
        """Return None: all streams have one table of values."""

    def issue(self, lane: Lane, command: Command, place: Place | None, nbytes: int | None = None) -> None:
        """Run a command. Raises RuntimeError if it would fail on the ranks."""
        if self.trouble is not None:
            raise self._explain_trouble()
        if self.recorder is not None:
            self.recorder.note(lane, command)
        self.flush()
        self._run(lane, command, "" if place is None else str(SourceLine.of(place)))

    def _run(self, lane: Lane, command: Command, line: str) -> None:
        with LOCALLY(), torch.no_grad():
            failures = self._executor.run_command(lane.ranks, lane.stream.name, line, command)
            for failed in failures:  # its error is raised here and now
                self._executor.run(0, [("settle", failed.command)])
        if failures:
            text = f"the simulation cannot run this operation: {failures[0].headline}"
            raise NotImplementedError(text) if "NotImplementedError" in failures[0].headline else RuntimeError(text)

    def flush(self) -> None:
        """Delete what the program has dropped."""
        for lane in list(self._lanes.values()):
            while lane.dead:
                self._run(lane, ("delete", (lane.dead.popleft(),)), "")

    def wait(self) -> None:
        """Let the controller wait for all ranks."""
        self.flush()
        self._schedule.wait()

    def fetch(self, rank: int, ids: Sequence[int], stream: Stream = MAIN) -> Future[list[Any]]:
        """Return zeros; the controller waits for the rank."""
        self.check_can_wait()
        self.flush()
        self._schedule.wait(rank)
        values = [self._executor.values[each] for each in ids]
        with LOCALLY():
            return Future.completed([torch.zeros((), dtype=value.dtype).expand(value.shape) for value in values])

    def describe(self, lane: Lane, value: int) -> list[Any]:
        """Return the number that the ranks are asked for."""
        self._schedule.wait(lane.ranks[0])
        return [self._executor.values[value]]

    def infer(self, *_: Any) -> None:
        """Return None: there is no rank to ask."""

    def call_on(self, rank: int, function: Any, tree: Any, stream: Stream = MAIN) -> Future[Any]:
        raise NotImplementedError("a simulation has no rank on which a function can be called")

    def rendezvous(self, other: Engine | None = None) -> Rendezvous:
        if other is not None and other is not self:
            raise NotImplementedError("a simulation cannot copy to another mesh: use slices of one simulated mesh")
        return Rendezvous("", 0, True)

    def close(self) -> None:
        """End the simulation, and write the trace."""
        is_first = self.trouble is None
        super().close()
        if is_first and self.at_close is not None:
            self.at_close()


class _Table(dict[int, Any]):
    """The values of a simulation, whose memory is accounted."""

    def __init__(self, memory: MemoryLog, schedule: Schedule) -> None:
        super().__init__()
        self.owner: tuple[Sequence[int], str] = ((), "")  # ranks and line of the present command
        self.written: list[int] = []  # by the present command
        self._memory = memory
        self._schedule = schedule

    def __setitem__(self, number: int, value: Any) -> None:
        self.pop(number, None)
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            self._memory.take(storage._cdata, storage.nbytes(), *self.owner)
        super().__setitem__(number, value)
        self.written.append(number)

    def update(self, pairs: Any) -> None:
        for number, value in pairs.items() if isinstance(pairs, dict) else pairs:
            self[number] = value

    def pop(self, number: int, *default: Any) -> Any:
        value = super().pop(number, *default)
        if isinstance(value, torch.Tensor):
            self._memory.drop(value.untyped_storage()._cdata)
            self._schedule.forget(number)
        return value


class SimulatedExecutor(Executor):
    """Runs commands on meta tensors, and adds what they cost to a schedule."""

    def __init__(self, schedule: Schedule, memory: MemoryLog, size: int) -> None:
        nothing: Any = None
        groups: Groups = nothing
        super().__init__(0, groups, self._run_operator)
        self._schedule = schedule
        self.values: _Table = _Table(memory, schedule)
        self._all = range(size)
        self._ranks: Sequence[int] = self._all
        self._stream = ""
        self._line = ""
        self._inputs: list[int] = []
        self._groupings: dict[str, tuple[tuple[int, ...], ...]] = {}

    def run_command(self, ranks: Sequence[int], stream: str, line: str, command: Command) -> list[Any]:
        """Run a command on these ranks; return its failures."""
        self._schedule.label = _LABEL.get()
        if command[0] not in _DEFINITIONS:
            self._schedule.issue(self._name_of(command))
        self._ranks, self._stream, self._line = ranks, stream, line
        self._inputs = list(self._inputs_of(command))
        self.values.owner, self.values.written = (ranks, line), []
        failures = self.run(0, [command])
        self._schedule.make_ready([*self.values.written, *self._mutated_by(command)], ranks, stream)
        return failures

    def _name_of(self, command: Command) -> str:
        head = command[0]
        return str(head) if isinstance(head, str) else _short(self._steps[head].func)

    def _inputs_of(self, command: Command) -> Iterator[int]:
        match command:
            case (int() as head, *_):
                yield from command[FIRST_SLOT : FIRST_SLOT + self._steps[head].values]
            case ("reduce", _, source, _, _, _, into, _):
                yield from (source, into)
            case ("replay", _, inputs, _):
                yield from inputs
            case ("call", _, arguments, *_):
                yield from ids_in(arguments.load())
            case ("send", source, *_) | ("alias", _, source):
                yield source

    def _mutated_by(self, command: Command) -> Iterator[int]:
        if isinstance(command[0], int):
            yield from (command[index] for index in self._steps[command[0]].mutated)

    def _run_operator(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operator = operator_of(func)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func is _ITEM:
            return torch.zeros((), dtype=given[0].dtype).item()
        if not given and "device" in operator.named_free:
            kwargs = {**kwargs, "device": META}
        try:
            result = infer(func, args, kwargs)
        except Unknown:
            raise NotImplementedError(f"the shape of the result of {operator.name} depends on values") from None
        if not operator.is_view and func is not torch.ops.aten.detach.default:
            made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            count = flop_registry.get(func.overloadpacket)
            flops = 0 if count is None else int(count(*args, **kwargs, out_val=result))
            moved = sum(leaf.numel() * leaf.element_size() for leaf in [*given, *made])
            self._spend(_short(func), self._schedule.costs.operation(flops, moved))
        return result

    def _spend(self, name: str, seconds: float) -> None:
        groups = ((rank,) for rank in self._ranks)
        self._schedule.run(groups, self._stream, name, seconds, line=self._line, inputs=self._inputs)

    def _constant(self, number: int, output: int, tensor: torch.Tensor, meta: Meta) -> None:
        self.values[output] = meta.make_tensor()
        self._spend("constant", self._schedule.costs.operation(0, meta.nbytes))

    def _numbers(self, number: int, output: int, numbers: dict[int, int]) -> None:
        self.values[output] = torch.empty((), dtype=torch.int64, device=META)

    def _join(self, number: int, grouping: Grouping) -> None:
        self._groupings[grouping.name] = tuple(tuple(map(_rank_of, group)) for group in grouping.members)

    def _reduce(
        self, number: int, output: int, source: int, group: str, reduction: str, scatter: bool, into: int, meta: Meta
    ) -> None:
        groups = self._groupings[group]
        size = len(groups[0])
        parts = meta.shape[1:] if scatter else meta.shape
        shape = (size, *parts) if reduction == "stack" else parts
        kinds = {(True, True): "all_to_all", (True, False): "reduce_scatter", (False, True): "all_gather"}
        kind = kinds.get((scatter, reduction == "stack"), "all_reduce")
        for ranks in groups:
            crosses = len({self._schedule.hosts[rank] for rank in ranks}) > 1
            seconds = self._schedule.costs.collective(kind, meta.nbytes, size, crosses_hosts=crosses)
            name, stream, line = f"{kind} {reduction}", self._stream, self._line
            self._schedule.run([ranks], stream, name, seconds, line=line, inputs=self._inputs, kind="collective")
        if not into:
            self.values[output] = torch.empty(shape, dtype=meta.dtype, device=META)

    def _send(
        self, number: int, source: int, group: str, targets: dict[int, Sequence[Member]], tag: int, meta: Meta
    ) -> None:
        for sender in targets:
            self._schedule.send(tag, sender, self._stream, line=self._line, inputs=self._inputs)

    def _receive(
        self, number: int, output: int, group: str, sources: dict[int, Member | int], tag: int, meta: Meta
    ) -> None:
        for rank, source in sources.items():
            if isinstance(source, str):
                self._schedule.receive(tag, _rank_of(source), rank, self._stream, meta.nbytes, line=self._line)
        self.values[output] = meta.make_tensor()

    def _call(
        self, number: int, function: int, arguments: Any, outputs: Sequence[int] | int, metas: Sequence[Any] = ()
    ) -> None:
        if isinstance(outputs, int):
            raise NotImplementedError("a simulation cannot ask for the shapes of results: give remote() a rule")
        values = [*(self.values[each] for each in self._inputs), *metas]
        moved = sum(getattr(value, "nbytes", 0) for value in values)
        name = getattr(self._functions[function], "__qualname__", "remote function")
        self._spend(name, self._schedule.costs.operation(0, moved))
        self.values.update(zip(outputs, (_made(meta) for meta in metas), strict=True))


def _made(meta: Meta | OpaqueRef) -> Any:
    return meta.make_tensor() if isinstance(meta, Meta) else meta


def _short(func: Any) -> str:
    """Return the name of an operator without namespace and overload."""
    return str(func.overloadpacket).rpartition(".")[2]


def _rank_of(member: Member) -> int:
    return int(member.rpartition("/")[2])
