"""Pass failures of actors and processes to the owner of the mesh; recreate actors after a heal.

The node of an actor notifies the node that spawned it; the ledger there has the owner of the mesh. An owner that is an
actor handles the failure (`__supervise__`). A failure of the client's meshes goes to `Node.on_fault`.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from meshbook.runtime.actor.context import Instance, spawner_of
from meshbook.runtime.actor.failure import MeshFailure, Receipt
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import ExitReport, SupervisionError
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.node.hosted_actor import HostedActor
from meshbook.runtime.node.ledger import Ledger, OwnedMesh, Policy
from meshbook.runtime.node.outbound import Outbound
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.telemetry.events import Kind
from meshbook.runtime.threads import notify
from meshbook.runtime.traces import name_cells
from meshbook.runtime.wire.messages import Address

logger = logging.getLogger(__name__)

ACTORS_PER_INCARNATION = 1_000_000
OnFault = Callable[[OwnedMesh, MeshFailure], None]
SendEvent = Callable[[Kind, OwnedMesh, Sequence[int], str], None]


class Supervision:
    """The meshes that a node has spawned, and their failures. `find` returns an owner among the actors here."""

    def __init__(
        self,
        routes: Routes,
        calls: Outbound,
        find: Callable[[str], HostedActor | None],
        *,
        on_fault: OnFault,
        send_event: SendEvent,
        receipts: Callable[[str, str], Sequence[Receipt]],
        incarnation: int,
    ) -> None:
        self.ledger = Ledger()  # the meshes that were spawned from here
        self._routes = routes
        self._notify = calls.notify_control
        self._find = find
        self._on_fault = on_fault  # for failures of the client's meshes
        self._send_event = send_event
        self._receipts = receipts  # of the pending calls to an actor on a node
        # Numbers continue after a restart: a message for an actor of an earlier incarnation must not reach a new one.
        self._first = incarnation * ACTORS_PER_INCARNATION  # number of the first actor that is spawned from here
        self._numbers = itertools.count(self._first)
        self._last = self._first - 1

    def name_actor(self, name: str) -> str:
        """Return a new key for an actor; it names this node, since several nodes may spawn on one process."""
        number = self._last = next(self._numbers)
        return f"{name}-{number}@{self._routes.own.node}"

    # -- actors here, spawned by any node ------------------------------------------------

    def actor_failed(self, instance: Instance, error: SupervisionError) -> None:
        """Notify the owner that an actor here has failed."""
        spawner = self._routes.find(spawner_of(instance.key))
        if spawner is None:
            logger.error("%s", error)  # an actor of the runtime
        else:
            self._notify(spawner, "failed", instance.key, self._routes.own.node, str(error))

    def actor_gone(self, instance: Instance, error: SupervisionError) -> None:
        """Notify the owner that an actor here has ended, unless it failed: failures are reported apart."""
        spawner = self._routes.find(spawner_of(instance.key))
        if spawner is not None and error.__cause__ is None:
            self._notify(spawner, "ended", instance.key, self._routes.own.node)

    # -- actors elsewhere, spawned from here -----------------------------------------------

    def meshes_of(self, key: str) -> list[OwnedMesh]:
        """Return the meshes that an actor owns, the newest first."""
        return self.ledger.of(key)

    def owned_actor_failed(self, key: str, node: str, report: str) -> None:
        if (found := self.ledger.fail(key, node, name_cells(report))) is not None:
            found[1].receipts = self._receipts(node, key)
            self._send_event("failed", found[0], found[1].crashed_ranks[-1:], found[1].report())
            self._supervise(*found)

    def owned_actor_ended(self, key: str, node: str) -> None:
        self.ledger.end(key, [node])

    def lose(self, report: ExitReport, receipts: Sequence[Receipt] = ()) -> None:
        """Report the end of a process to the owners of meshes on it, or to the policy of its process mesh.

        `receipts` are those of the calls that failed because of it.
        """
        failures = self.ledger.lose(report.node, str(report), stopped=bool(report.stopped), ended_by=report.ended_by)
        for _, failure in failures:
            failure.receipts = receipts
        procs = self.ledger.processes_on(report.node) if failures else None
        if procs is not None:
            rank = procs.ranks[report.node]
            if report.ended_by:
                self._send_event("ended", procs, [rank], f"by {report.ended_by}")
            else:
                self._send_event("failed", procs, [rank], str(report))
        if procs is None or procs.policy is None:
            for owned_mesh, failure in failures:
                notify(functools.partial(self._supervise, owned_mesh), failure)
        else:
            procs.policy.take(
                procs,
                procs.last_failure(str(report), report.ended_by),
                functools.partial(self._escalate_all, procs.policy, failures),
            )

    def _escalate_all(
        self, policy: Policy, failures: Sequence[tuple[OwnedMesh, MeshFailure]], loss: MeshFailure
    ) -> None:
        """Report the loss of a process that this policy leaves dead; do not consult the policy again for its actors."""
        for owned_mesh, failure in failures:
            if owned_mesh.policy is policy:
                self.escalate(owned_mesh, failure.also(loss.remark))
            else:
                self._supervise(owned_mesh, failure)

    def _supervise(self, owned_mesh: OwnedMesh, failure: MeshFailure) -> None:
        if owned_mesh.policy is None:
            self.escalate(owned_mesh, failure)
        else:
            owned_mesh.policy.take(owned_mesh, failure, functools.partial(self.escalate, owned_mesh))

    def escalate(self, owned_mesh: OwnedMesh, failure: MeshFailure) -> None:
        """Report a failure to the owner of the mesh. An owner that has ended needs none: its meshes end with it."""
        if owned_mesh.on_failure is not None and owned_mesh.on_failure(failure):
            return
        if not owned_mesh.owner:
            self._on_fault(owned_mesh, failure)
        elif (hosted := self._find(owned_mesh.owner)) is not None:
            hosted.supervise(owned_mesh, failure)

    def find_lost(self, targets: Sequence[Target]) -> int | None:
        """Return the index of the first target that is known to be lost, or None."""
        failed, down = self.ledger.failed_nodes(targets[0].actor), self._routes.down
        if not failed and not down:
            return None
        nodes = enumerate(target.address.node for target in targets)
        return next((index for index, node in nodes if node in failed or node in down), None)

    def create_again(
        self, lost: Sequence[tuple[OwnedMesh, list[int]]], *, restarted: Sequence[Address]
    ) -> list[tuple[str, Future[Any]]]:
        """Create these actors again and return the node and the future of each.

        Notifies the restarted processes (`restarted`) that no other earlier actor of this node will be created there.
        """
        begun = []
        for owned_mesh, ranks in lost:
            nodes = {rank: node for node, rank in owned_mesh.ranks.items()}
            if left := [rank for rank in ranks if rank in nodes]:  # ranks stopped meanwhile are skipped
                begun += [(nodes[rank], future) for rank, future in zip(left, owned_mesh.restart(left), strict=True)]
        number = self._last
        for address in restarted if number >= 0 else ():
            self._notify(address, "recreated", self._routes.own.node, number)
        return begun


def log_fault(owned_mesh: OwnedMesh, failure: MeshFailure) -> None:
    """Log a failure of the client's meshes: the default of `on_fault`."""
    logger.error("%s", failure)
