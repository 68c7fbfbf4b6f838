"""The controller's registry of workers by host agent, reported by the agents: with an agent its workers are lost."""

from __future__ import annotations

from collections.abc import Callable

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.threads import items_of

WORKER_REGISTRY = "worker_registry"  # the actor that a controller hosts for this


class WorkerRegistry(Actor):
    """Hosted inline: a start is recorded before any message of the new worker is handled."""

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
