"""Actors that exist once in a run, in the client's process: named controllers, and the registry of workers.

Any actor of the run may call `get_or_spawn_controller`; an actor of the client's process keeps the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from meshbook.runtime.actor.base import Actor, check_arguments, check_class
from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.ports import Port
from meshbook.runtime.errors import ActorError, ExitReport
from meshbook.runtime.geometry import SCALAR
from meshbook.runtime.mesh.actors import TAKEN, ActorMesh, current_node
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.threads import items_of

A = TypeVar("A", bound=Actor)
CONTROLLERS = "controllers"  # the actor that every client hosts


def get_or_spawn_controller(name: str, cls: type[A], *args: Any, **kwargs: Any) -> Future[A]:
    """Return the one actor of this name in the whole run. The first call makes it, in the client's process.

    Other calls get the same actor, whatever class and arguments they give. ValueError and TypeError as `spawn` has
    them. The future raises an ActorError if the constructor failed, or the actor has died: it is not made again.
    """
    check_class(cls, TAKEN)
    check_arguments(cls, args, kwargs)
    node = current_node()
    controllers = ActorMesh(CONTROLLERS, Controllers, [Target(node.controller, CONTROLLERS)], SCALAR.region)
    return cast("Future[A]", controllers.get_or_spawn.call_one(name, cls, args, kwargs))


class Controllers(Actor):
    """The list of controllers. A constructor that is slow does not delay calls for other controllers."""

    def __init__(self) -> None:
        self._meshes: dict[str, ActorMesh] = {}
        self._failed: dict[str, str] = {}

    @endpoint(explicit_response_port=True)
    def get_or_spawn(
        self, port: Port[Any], name: str, cls: type[Actor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Answer with the actor once it is constructed, or with the failure of its construction."""
        here = context()  # the thread that settles the future belongs to no actor, and the answer needs a context

        def answer() -> None:
            if (error := mesh.initialized.exception()) is not None:
                self._failed.setdefault(name, str(error))
            here.run(self._answer, port, name, mesh)

        try:
            if name not in self._meshes:
                made = context().actor_instance.proc.spawn(name, cls, *args, **kwargs)
                self._meshes[name] = cast("ActorMesh", made)
            mesh = self._meshes[name]
        except Exception as error:
            port.exception(ActorError(f"{type(error).__name__}: {error}", error))
        else:
            mesh.initialized.when_done(answer)

    def _answer(self, port: Port[Any], name: str, mesh: ActorMesh) -> None:
        if name in self._failed:
            port.exception(ActorError(f"Failure on {name}: {self._failed[name]}"))
        else:
            port.send(mesh)

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Record that a controller has failed. It stays failed; later calls get the error."""
        self._failed[failure.mesh_name] = failure.report()
        return True


WORKER_REGISTRY = "worker_registry"  # the actor that a controller hosts for this


class WorkerRegistry(Actor):
    """The workers by host agent, as the agents report them. If an agent ends, its workers are lost.

    Hosted inline: a start is recorded before any message of the new worker is handled.
    """

    def __init__(self) -> None:
        self._agents: dict[str, str] = {}  # by worker
        self.when_silent: Callable[[str, float, str], None] | None = None  # called on the receiving thread

    @endpoint
    def starting(self, agent: str, nodes: list[str]) -> None:
        """Note that this agent is about to start these workers."""
        self._agents |= dict.fromkeys(nodes, agent)

    @endpoint
    def silent(self, host: str, seconds: float, by: str) -> None:
        """Note that this agent received nothing from the host with this prefix for `seconds`, and has dropped it."""
        if self.when_silent is not None:
            self.when_silent(host, seconds, by)

    def ended(self, report: ExitReport) -> None:
        """Forget a worker."""
        self._agents.pop(report.node, None)

    @property
    def all(self) -> dict[str, str]:
        """The agent of each worker."""
        return dict(self._agents)

    def adopt(self, agents: dict[str, str]) -> None:
        """Add the registry of the previous controller."""
        self._agents |= agents

    def guests_of(self, agent: str) -> list[str]:
        """Return the workers of this agent."""
        return [node for node, host in items_of(self._agents) if host == agent]

    def workers(self) -> list[str]:
        """Return all workers of the run that have not ended."""
        return list(self._agents)
