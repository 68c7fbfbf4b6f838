"""`DeviceMesh`: the ranks that tensors are on. Its slices share one engine.

`activate` makes it the mesh on which torch creates tensors: a dispatch mode of torch, so it holds for the thread.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from meshbook.runtime.actor.future import Future
from meshbook.runtime.geometry import MeshTrait, Region
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.tensor.engine import Engine
from meshbook.runtime.tensor.mesh_value import Place
from meshbook.runtime.tensor.metadata import names_here
from meshbook.runtime.tensor.operators import operator_of
from meshbook.runtime.tensor.streams import MAIN, Stream
from meshbook.runtime.tensor.tensor import MeshTensor, dispatch, make_constant, make_numbers

if TYPE_CHECKING:
    from meshbook.runtime.mesh.procs import ProcMesh

aten = torch.ops.aten
CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class RemoteProcessGroup:
    """The process groups of a mesh along some dimensions, as an argument of remote functions.

    Each rank gets its own as a torch.distributed.ProcessGroup.
    """

    mesh: DeviceMesh
    groups: tuple[tuple[int, ...], ...]

    def size(self) -> int:
        """Return the number of ranks in each group."""
        return len(self.groups[0])

    def name_in(self, stream: Stream) -> str:
        """Return the name on the ranks of the groups for a stream; the first call makes them."""
        place = self.mesh.place(stream)
        return place.engine.join(place.lane, self.groups)


class DeviceMesh(MeshTrait):
    """The ranks of a process mesh, or a part of them, with tensors on them. `procs.device_mesh` is that of `procs`."""

    def __init__(self, engine: Engine, actors: ActorMesh) -> None:
        self._engine = engine
        self._actors = actors
        self._places: dict[Any, Place] = {}

    @property
    def engine(self) -> Engine:
        """The engine that runs the commands of this mesh and its slices."""
        return self._engine

    @property
    def region(self) -> Region:
        return self._actors.region

    def _with_region(self, region: Region) -> DeviceMesh:
        part = DeviceMesh(self._engine, self._actors._with_region(region))
        return self._engine.meshes.setdefault(region, part)

    def __call__(self, **dims: int | slice) -> DeviceMesh:
        """Return a part of the mesh, as `slice` does."""
        return self.slice(**dims)

    @property
    def device_mesh(self) -> DeviceMesh:
        """This mesh itself, so that it can be passed in place of a process mesh."""
        return self

    def place(self, stream: Stream = MAIN) -> Place:
        """Return the place of tensors of this mesh and stream; always the same object."""
        found = self._places.get(stream)
        if found is None:
            found = self._places.setdefault(stream, Place(self, stream, self._engine.lane(self._actors, stream)))
        return found

    def activate(self) -> contextlib.AbstractContextManager[DeviceMesh]:
        """While the block runs, torch creates tensors on this mesh, each rank its own, in this thread."""
        return _activate(self)

    def constant(self, tensor: torch.Tensor) -> MeshTensor:
        """Return a copy of a local tensor on each rank."""
        return make_constant(tensor, self.place(get_active_stream()))

    def groups(self, dims: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the groups of ranks that differ only in these dimensions; the first dimension varies slowest."""
        region, extent = self.region, self.extent
        ranks = region.ranks()
        others = [range(size) for name, size in extent.items() if name not in dims]
        fixed = [name for name in extent if name not in dims]
        groups = []
        for coordinates in itertools.product(*others):
            place = dict(zip(fixed, coordinates, strict=True))
            inner = itertools.product(*(range(extent[name]) for name in dims))
            points = (extent.point(**place, **dict(zip(dims, point, strict=True))) for point in inner)
            groups.append(tuple(ranks[point.rank] for point in points))
        return groups

    def process_group(self, dims: str | Sequence[str] | None = None) -> RemoteProcessGroup:
        """Return the process groups along these dimensions, for remote functions. KeyError: an unknown dimension."""
        names = self.extent.labels if dims is None else [dims] if isinstance(dims, str) else list(dims)
        self.size(names)  # checks the names
        group = RemoteProcessGroup(self, tuple(self.groups(names)))
        group.name_in(get_active_stream())
        return group

    def rank_tensor(self, dims: str | Sequence[str]) -> MeshTensor:
        """Return each rank's coordinate along a dimension, as a tensor without dimensions.

        Along several dimensions: the rank's number among them, in row-major order. KeyError: an unknown dimension.
        """
        names = [dims] if isinstance(dims, str) else list(dims)
        self.size(names)  # checks the names
        return self._numbers(names)

    def rank_tensors(self) -> dict[str, MeshTensor]:
        """Return the coordinates of each rank by dimension."""
        return {name: self._numbers([name]) for name in self.extent.labels}

    rank = rank_tensor

    @property
    def ranks(self) -> dict[str, MeshTensor]:
        """The coordinates of each rank by dimension."""
        return self.rank_tensors()

    def _numbers(self, names: list[str]) -> MeshTensor:
        numbers = {}
        for position, rank in enumerate(self.region.ranks()):
            point, number = self.extent.point(position), 0
            for name in names:
                number = number * self.extent[name] + point[name]
            numbers[rank] = number
        return make_numbers(numbers, self.place(get_active_stream()))

    def heal(self) -> Future[list[int]] | list[int]:
        """Restart the dead processes: see `ProcMesh.heal`. `procs.device_mesh` is another mesh then."""
        return self._engine.procs.heal()

    @property
    def successor(self) -> DeviceMesh:
        """This mesh; if its engine has ended with a rank, the same ranks with a new engine."""
        return self if self._engine.trouble is None else self._engine.procs.device_mesh._with_region(self.region)

    def exit(self) -> None:
        """Stop the tensor engine: tensors of this mesh and its slices cannot be used any more."""
        self._engine.close()

    def to_table(self) -> str:
        """Return a text table of the ranks."""
        return self._engine.procs.to_table()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceMesh) and (self._engine, self.region) == (other._engine, other.region)

    def __hash__(self) -> int:
        return hash((id(self._engine), self.region))

    def __repr__(self) -> str:
        return f"<DeviceMesh {self._engine.procs.name} {dict(self.extent)}>"


def device_mesh_of(procs: ProcMesh) -> DeviceMesh:
    """Return a new mesh for tensors on these processes, with an engine of its own."""
    engine = Engine(procs)
    mesh = engine.meshes[engine.actors.region] = DeviceMesh(engine, engine.actors)
    return mesh


def spawn_tensor_engine(procs: ProcMesh) -> DeviceMesh:
    """Return the mesh of the tensors on these processes: Monarch's name of `procs.device_mesh`."""
    return procs.device_mesh


# -- the active mesh ------------------------------------------------------------------


class ActiveMesh(TorchDispatchMode):
    """Sends the operators that torch runs in this thread to a place; without one, runs local ones here."""

    def __init__(self, place: Place | None, stream: Stream) -> None:
        super().__init__()
        self.place = place
        self.stream = stream

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping `__torch_dispatch__`: that would import torch._dynamo, and cost 4 µs a call."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if MeshTensor in types:
            return dispatch(func, args, kwargs, self.place)
        if self.place is None:
            with torch._C._DisableTorchDispatch():  # an outer mesh is not active either
                return func(*args, **kwargs)
        if func is aten.lift_fresh.default:
            return make_constant(args[0], self.place)
        if _is_factory(func, args, kwargs):
            is_on_gpu = self.place.is_global and self.place.engine.device != "cpu"
            # torch names the CPU where the program names no device. A generator of this process is one of the CPU.
            if is_on_gpu and kwargs.get("device") in (None, CPU) and kwargs.get("generator") is None:
                kwargs = {**kwargs, "device": torch.device(self.place.engine.device)}
            return dispatch(func, args, kwargs, self.place)
        if self.place.engine.recorder is not None and operator_of(func).mutated:
            raise RuntimeError(
                f"compile() cannot record a change of a local tensor ({func}), since replays would not repeat it: "
                "create the optimizer and its state while the mesh is active"
            )
        return func(*args, **kwargs)


class GpuNames(TorchFunctionMode):
    """Lets code name the GPUs of the ranks where this process has none: `torch.zeros(3, device="cuda")`.

    torch would look for the GPU before it calls a dispatch mode.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if active_place() is None:
            return func(*args, **kwargs)
        args, kwargs = names_here(args, kwargs)
        if func not in _FROM_DATA:
            return func(*args, **kwargs)
        like = args[0]._meta.here if args and isinstance(args[0], MeshTensor) else None  # of `x.new_tensor(...)`
        device = kwargs.pop("device", like)
        made = func(*args, **kwargs)
        return made if device is None else made.to(device)


# Functions that make a tensor of values here. torch passes on the tensor, and no device.
_FROM_DATA: Final = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor})


def _is_factory(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a call makes a tensor of nothing. One on the meta device describes a tensor, and stays here."""
    if not operator_of(func).makes_tensors or str(kwargs.get("device")) == "meta":
        return False
    leaves = [leaf for value in (*args, *kwargs.values()) for leaf in (value if type(value) is list else (value,))]
    return not any(isinstance(leaf, torch.Tensor) for leaf in leaves)


def _active() -> ActiveMesh | None:
    """Return the innermost activation of this thread."""
    modes = reversed(_get_current_dispatch_mode_stack())
    return next((mode for mode in modes if isinstance(mode, ActiveMesh)), None)


def active_place() -> Place | None:
    """Return the place at which torch creates tensors now."""
    mode = _active()
    return None if mode is None else mode.place


def get_active_mesh() -> DeviceMesh:
    """Return the mesh on which torch creates tensors now. Raises ValueError if none is active."""
    place = active_place()
    if place is None:
        raise ValueError("no mesh is active: use `with mesh.activate():`")
    return place.mesh


def get_active_stream() -> Stream:
    """Return the stream of the operations of this thread."""
    mode = _active()
    return MAIN if mode is None else mode.stream


@contextlib.contextmanager
def _activate(mesh: DeviceMesh) -> Iterator[DeviceMesh]:
    stream = get_active_stream()
    names = GpuNames() if mesh.engine.has_gpus_to_name else contextlib.nullcontext()
    with names, ActiveMesh(mesh.place(stream), stream):
        yield mesh


@contextlib.contextmanager
def _activate_stream(stream: Stream) -> Iterator[Stream]:
    place = active_place()
    with ActiveMesh(None if place is None else place.mesh.place(stream), stream):
        yield stream


Stream.activate_on_mesh = _activate_stream


class _NoMesh:
    """No mesh: `with no_mesh.activate():` runs torch locally inside of an active mesh."""

    def activate(self) -> contextlib.AbstractContextManager[Any]:
        """While the block runs, torch creates local tensors in this thread."""
        mode: contextlib.AbstractContextManager[Any] = ActiveMesh(None, get_active_stream())
        return mode

    def __repr__(self) -> str:
        return "<no mesh>"


no_mesh = _NoMesh()
