"""`Mesh`: the ranks of the global view, where a tensor is one tensor, sharded or replicated over the ranks."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import SupervisionError
from meshbook.runtime.geometry.region import Extent, Region
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.tensor.device_mesh import DeviceMesh
from meshbook.runtime.tensor.engine import COLLECTIVE_SECONDS, LOCALLY, Engine
from meshbook.runtime.tensor.failures import DeviceMeshError
from meshbook.runtime.tensor.layouts import Layout
from meshbook.runtime.tensor.recovery import Recovery, plan_recovery
from meshbook.runtime.tensor.shard_functions import execute_on_shards

if TYPE_CHECKING:
    from meshbook.runtime.mesh.hosts import HostMesh
    from meshbook.runtime.mesh.procs import ProcMesh

T = TypeVar("T")


class Mesh(DeviceMesh):
    """Ranks in a grid, on which tensors are sharded: `distribute(x, mesh, ["data", None])`.

        mesh = Mesh(shape=(4, 2), dims=("data", "model"))

    It starts its own processes, on this host or on `hosts`, whose number must divide that of the ranks; `stop()` ends
    them. `procs.as_device_mesh()` makes one of existing processes. `device` is the type of the ranks' device: "cpu"
    or "cuda"; by default "cuda" if each rank has its own GPU. Under `with mesh.activate():` torch creates replicated
    tensors, with the random numbers that this process would draw.

    Raises ValueError for a shape that does not fit. Waits for the processes, and raises what their start raises.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dims: Sequence[str] | None = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        hosts: HostMesh | None = None,
        device: str | None = None,
    ) -> None:
        layout = _layout_of(tuple(shape), dims if dims is not None else mesh_dim_names, math.prod(shape))
        places: Any = current_node().places
        on = hosts if hosts is not None else places.host
        if math.prod(shape) % len(on):
            raise ValueError(f"{math.prod(shape)} ranks cannot be spread evenly over {len(on)} hosts")
        procs = on.spawn_procs(per_host={"ranks": math.prod(shape) // len(on)})
        self._has_own_procs = True
        try:
            self._begin(procs, layout, device)
        except BaseException:
            procs.stop()
            raise

    @classmethod
    def over(
        cls,
        procs: ProcMesh,
        dims: Sequence[str] | None = None,
        shape: Sequence[int] | None = None,
        device: str | None = None,
    ) -> Mesh:
        """Return the mesh of existing processes: what `procs.as_device_mesh` returns."""
        sizes = tuple(shape if shape is not None else procs.extent.sizes)
        names = dims if dims is not None or shape is not None else procs.extent.labels
        layout = _layout_of(sizes, names, len(procs))
        with procs.making_engines():
            made: Any = procs.__dict__.setdefault("_global_meshes", {})
            found: Mesh | None = made.get((layout, device))
            if found is None or found.engine.has_stopped:
                found = cls.__new__(cls)
                found._has_own_procs = False
                found._begin(procs, layout, device)
                made[layout, device] = found
        return found

    def _begin(self, procs: ProcMesh, layout: Layout, device: str | None) -> None:
        engine = Engine(procs, layout)
        super().__init__(engine, engine.actors)
        self._region = Extent(layout.dims, layout.shape).region
        engine.meshes[self._region] = self
        itself = weakref.ref(self)
        engine.reconnect = lambda: found._reconnect() if (found := itself()) is not None else None
        self._join(device)

    def _join(self, device: str | None) -> None:
        """Connect the ranks, in torch's default process group, unless they are; wait for them."""
        engine, actors = self._engine, cast("Any", self._actors)
        with LOCALLY():
            found = [answer for _, answer in _wait(actors.survey.call())]
            engine.device = device or ("cuda" if all(has_gpu for has_gpu, _ in found) else "cpu")
            self._backend = "gloo" if engine.device == "cpu" else "cpu:gloo,cuda:nccl"
            if not all(is_member for _, is_member in found):
                _wait(engine.procs.init_process_group(self._backend, timeout=COLLECTIVE_SECONDS))
        engine.issue(engine.whole, ("join_mesh", engine.device), None, 0)
        engine.wait()

    def execute(
        self, function: Callable[..., Any], /, *args: Any, sharding_spec: Sequence[Any] | None = None, **kwargs: Any
    ) -> Any:
        """Run a function on every rank with the shards of the arguments; return its results as tensors of this mesh.

            doubled = mesh.execute(lambda t: t * 2, batch)

        The function gets plain tensors: a copy of the rank's shard for each tensor of this mesh, the whole tensor for a
        replicated or a local one. It may use `torch.distributed`, in the same way on all ranks. Its results may be
        lists, tuples and dicts. A tensor in them with the shape of the first sharded argument's shard gets the
        placements of that argument. If no argument is sharded, the result is replicated, and must be equal on all
        ranks. Otherwise `sharding_spec`, which is that of `distribute`, says which parts the ranks have returned. What
        is no tensor in the results must be equal on all ranks. Autograd does not record the call.

        Waits for the function. Raises RemoteException if it fails, DeviceMeshError if a rank has died, and ValueError
        if its results are no parts of one tensor, or values that differ. After `heal()`, the same call works again.
        """
        return execute_on_shards(self.place(), function, args, kwargs, sharding_spec)

    def _reconnect(self) -> None:
        """Connect the ranks again after an operation has failed on some of them, and make their values agree."""
        engine, actors = self._engine, cast("Any", self._actors)
        with LOCALLY():
            engine.wait()
            stocks = [stock for _, stock in _wait(actors.take_stock.call())]
            # One random state for all: the ranks may have stopped at different operations.
            definitions = _wait(self._rank(0).definitions.call_one())
            self._recover(dataclasses.replace(plan_recovery(stocks, self.shape), definitions=definitions))

    def _recover(self, plan: Recovery) -> set[Callable[[], None]]:
        """Carry the plan out; return what loads modules whose parameters are lost from their checkpoints."""
        engine = self._engine
        _wait(engine.procs.init_process_group(self._backend, timeout=COLLECTIVE_SECONDS))
        engine.issue(engine.whole, ("recover", engine.device, plan), None, 0)
        lost = [module for module in list(engine.modules) if module.restore(plan)]
        engine.wait()
        return {module.reload for module in lost if module.reload is not None}

    def heal(self) -> list[int]:
        """Restart the ranks that have died, and restore the tensors; return the ranks that were restarted. Waits.

        A tensor comes from ranks that have the same part of it: any rank if it is replicated, its replicas if it is
        sharded along some dimensions of the mesh only. Tensors without such ranks are lost: their fetch raises
        DeviceMeshError. The same holds for results of operations that ran while the rank died. The ranks get a new
        default process group. Raises what `ProcMesh.heal` raises.
        """
        engine = self._engine
        with LOCALLY():
            if engine.has_stopped:
                raise DeviceMeshError(f"{self!r} has been stopped: make another mesh")
            # The ranks that live may wait for those that died; they run what they still have to, which fails.
            _wait(engine.procs.abort_process_groups())
            asked = [self._rank(rank).take_stock.call_one() for rank in range(len(self))]
            for future in asked:
                with contextlib.suppress(SupervisionError):  # it has died
                    future.wait_here()
            _wait(engine.procs.heal())
            stocks = [None if future.exception() is not None else future.get() for future in asked]
            plan = plan_recovery(stocks, self.shape)
            engine.start_again()
            source = next((rank for rank in range(len(self)) if rank not in plan.new), None)
            if source is not None:
                definitions = _wait(self._rank(source).definitions.call_one())
                plan = dataclasses.replace(plan, definitions=definitions)
            loads = self._recover(plan)
        for load in loads:
            load()
        return sorted(plan.new)

    def _rank(self, rank: int) -> Any:
        return self._actors.slice(**dict(self._actors.extent.point(rank)))

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the dimensions."""
        return tuple(self.extent.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""
        return tuple(self.extent.sizes)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.dims)

    @property
    def device_type(self) -> str:
        """The type of the ranks' device: "cpu" or "cuda"."""
        return self._engine.device

    @property
    def procs(self) -> ProcMesh:
        """The processes of the ranks."""
        return self._engine.procs

    @property
    def region(self) -> Region:
        return self._region

    def _with_region(self, region: Region) -> NoReturn:
        raise NotImplementedError("a tensor of the global view is on a whole mesh; make a Mesh of fewer ranks")

    def rank_tensor(self, dims: str | Sequence[str]) -> NoReturn:
        """Raise TypeError: a tensor of this mesh has one value for all ranks."""
        raise TypeError("rank_tensor() is of the per-rank view: a tensor of a global mesh has one value for all ranks")

    def stop(self) -> Future[None]:
        """End the tensor engine, and the processes if this mesh has started them; resolves when they have ended."""
        self.exit()
        return self.procs.stop() if self._has_own_procs else Future.completed(None)

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *error: object) -> None:
        _wait(self.stop())

    def __repr__(self) -> str:
        return f"<Mesh {self.procs.name} {dict(self.extent)}>"


def _wait(future: Future[T]) -> T:
    """Wait for a future, also in an event loop, as that of a notebook."""
    future.wait_here()
    return future.get()


def _layout_of(shape: tuple[int, ...], dims: Sequence[str] | None, ranks: int) -> Layout:
    """Return the layout. Raises ValueError for sizes and names that do not fit together or the number of ranks."""
    if not shape or not all(isinstance(size, int) and size > 0 for size in shape):
        raise ValueError(f"the shape of a mesh lists the sizes of its dimensions, such as (4, 2), not {shape}")
    names = tuple(f"dim{index}" for index in range(len(shape))) if dims is None else tuple(dims)
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise ValueError(f"a mesh of shape {shape} needs {len(shape)} different names of dimensions, not {names}")
    if math.prod(shape) != ranks:
        raise ValueError(f"a mesh of shape {shape} has {math.prod(shape)} ranks, but there are {ranks} processes")
    return Layout(shape, names)
