"""`actors.step.rref(x)`: an endpoint that each rank calls with its own values. The results are mesh tensors.

The rank's engine sends a message to the actor beside it and waits for the answer, so the actor handles it in turn.
"""

from __future__ import annotations

from typing import Any

from meshbook.runtime.actor.context import context
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.tensor.device_mesh import active_place
from meshbook.runtime.tensor.remote import RemoteFunction, remote


class _CallBeside:
    """Calls an endpoint of the actor in this process."""

    def __init__(self, actors: ActorMesh, endpoint: str) -> None:
        self._actors = actors
        self._endpoint = endpoint
        self.__qualname__ = f"{actors.mesh_name}.{endpoint}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        actor = self._actors.slice(**dict(context().actor_instance.rank))
        return getattr(actor, self._endpoint).call_one(*args, **kwargs).get()


def call_by_reference(actors: ActorMesh, endpoint: str, propagate: Any, args: Any, kwargs: Any) -> Any:
    """Call an endpoint on each rank of the active mesh, with the rank's values of mesh tensors.

    Raises ValueError if the actors are not on the ranks of that mesh, or the endpoint has no `propagate`.
    """
    place = active_place()
    if propagate is None:
        raise ValueError(
            f"{actors.mesh_name}.{endpoint} has no rule for the shapes of its results: pass propagate= to @endpoint"
        )
    if place is None or dict(actors.extent) != dict(place.engine.procs.extent):
        raise ValueError(f"{actors!r} is not on the ranks of the active mesh: spawn it on that process mesh")
    known: dict[str, RemoteFunction] = actors.__dict__.setdefault("_references", {})
    if endpoint not in known:
        known[endpoint] = remote(_CallBeside(actors, endpoint), propagate=propagate)
    return known[endpoint](*args, **kwargs)
