"""The methods of process and actor meshes that begin with tensors.

The engine (`runtime.tensor`) is on a higher layer, and its modules import torch, which programs without tensors never
load. So `meshbook` passes `import_engine` to this module.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from meshbook.runtime.actor.endpoint import Arguments, Endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import PickleError

if TYPE_CHECKING:
    from meshbook.runtime.mesh.actors import ActorMesh
    from meshbook.runtime.mesh.ownership import Ownership
    from meshbook.runtime.tensor.device_mesh import DeviceMesh
    from meshbook.runtime.tensor.engine import Engine
    from meshbook.runtime.tensor.sharded_mesh import Mesh
    from meshbook.runtime.tensor.tensor import MeshTensor

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# Imports a module of `runtime.tensor` by its name there: set by `meshbook`, before anything can call it.
import_engine: Callable[[str], Any] = importlib.import_module


def heal_mesh(mesh: T) -> T:
    """Restart the dead processes of a mesh of processes or tensors, and return the mesh to go on with. Waits.

    That is the mesh itself, but for a `DeviceMesh` that has lost a rank, whose engine has ended: a new one of the same
    ranks. Raises what `mesh.heal` raises. `mesh.heal()` returns the ranks that were healed, or a future of them.
    """
    healed = cast("Any", mesh).heal()
    if isinstance(healed, Future):
        healed.get()
    successor: T = getattr(mesh, "successor", mesh)
    return successor


class ValuesOnRanks(TypeError):
    """A mesh tensor cannot be pickled: its values are on the ranks."""


def through_engine(verb: Callable[..., R]) -> Callable[..., R]:
    """Decorate a verb of an actor mesh: if an argument is a mesh tensor, each actor gets the value of its rank.

    Then the verb calls the engine's actors in the same processes, which pass the call on. Other calls cost nothing
    more: only an argument that cannot be pickled is looked at.
    """

    @functools.wraps(verb)
    def call(mesh: ActorMesh, endpoint: str, arguments: Arguments, *options: Any, **more: Any) -> R:
        try:
            return verb(mesh, endpoint, arguments, *options, **more)
        except PickleError as error:
            if not isinstance(error.__cause__, ValuesOnRanks):
                raise
        with import_engine("remote").calls_with_values(mesh, endpoint, arguments) as (passing, passed):
            return verb(passing, "pass_on", passed, *options, **more)

    return call


class TensorEndpoint(Endpoint[P, R]):
    """An endpoint of an actor mesh, which mesh tensors can be passed to as well."""

    __slots__ = ()

    def rref(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the endpoint on each rank with its values of mesh tensors; the results are mesh tensors as well.

        The ranks are those of the active mesh, else those of the tensors. Raises RuntimeError if there is neither, and
        ValueError if the actors are not on these ranks, or the endpoint has no `propagate`. What the endpoint raises is
        raised where a result is fetched.
        """
        self._method.check(args, kwargs)
        # Without torch there is neither an active mesh nor a mesh tensor.
        if "torch" in sys.modules and (place := import_engine("remote").place_of(args, kwargs)) is not None:
            name, propagate = self._method.name, self._method.options.propagate
            result: R = import_engine("remote").call_by_reference(self._mesh, name, propagate, place, args, kwargs)
            return result
        return super().rref(*args, **kwargs)


class TensorMesh:
    """A process mesh on which torch can create tensors."""

    _ownership: Ownership

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh of the tensors on these processes. The first use starts the tensor engine there.

        After a rank has died and was healed, this is another mesh with a new engine: the tensors were lost.
        """
        with self.making_engines():
            found: DeviceMesh | None = self.__dict__.get("_device_mesh")
            if found is None or found.engine.trouble is not None:
                if found is not None:
                    found.exit()
                found = self.__dict__["_device_mesh"] = import_engine("device_mesh").device_mesh_of(self)
        assert found is not None
        return found

    def making_engines(self) -> threading.RLock:
        """Return the lock that guards the tensor engines of this mesh, so that threads that begin together share one.

        Re-entrant: a finalizer that runs while an engine is made may use the mesh.
        """
        lock: threading.RLock = self.__dict__.setdefault("_making_engines", threading.RLock())
        return lock

    def as_device_mesh(
        self, dims: Sequence[str] | None = None, shape: Sequence[int] | None = None, *, device: str | None = None
    ) -> Mesh:
        """Return these processes as a mesh of the global view: see `meshbook.Mesh`. Waits until they are connected.

        `shape` rearranges the ranks, in row-major order: `procs.as_device_mesh(("data", "model"), (4, 2))`. Without it,
        the sizes are those of this mesh, and so are the names without `dims`. Equal calls return the same mesh. The
        ranks join torch's default process group, unless they are in one of all ranks of this mesh.

        Raises ValueError for a shape that does not fit.
        """
        mesh: Mesh = import_engine("sharded_mesh").Mesh.over(self, dims, shape, device)
        return mesh

    def note_tensor_engine(self, engine: Engine) -> None:
        """Record a tensor engine of these processes."""
        known = self._ownership.tensor_engines
        known[:] = [*(each for each in known if each() is not None), weakref.ref(engine)]

    @property
    def tensor_engines(self) -> list[Engine]:
        """The tensor engines of this mesh and of its slices that are in use."""
        return [engine for each in self._ownership.tensor_engines if (engine := each()) is not None]

    def activate(self) -> contextlib.AbstractContextManager[DeviceMesh]:
        """While the block runs, torch creates tensors on this mesh, each rank its own, in this thread.

        with procs.activate():
            a = torch.rand(3, 4)
            total = a.reduce("gpus", "sum")
        fetch_shard(total, gpus=1).get()
        """
        return self.device_mesh.activate()

    def rank_tensor(self, dims: str | Sequence[str]) -> MeshTensor:
        """Return each rank's coordinate along a dimension, or its number along several, as a tensor."""
        return self.device_mesh.rank_tensor(dims)

    def rank_tensors(self) -> dict[str, MeshTensor]:
        """Return the coordinates of each rank by dimension, as tensors."""
        return self.device_mesh.rank_tensors()
