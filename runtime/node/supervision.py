"""Who is told when an actor or a process fails, and what is created again when it is healed.

The node of an actor tells the node that spawned it; there the ledger says whose mesh that was. An owner which is an
actor is asked (`__supervise__`), and a failure of the client's goes to whoever started the node.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from meshbook.runtime.actor.context import Instance, spawner_of
from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import ExitReport, SupervisionError
from meshbook.runtime.node.asking import Questions
from meshbook.runtime.node.calls import Target
from meshbook.runtime.node.hosting import HostedActor
from meshbook.runtime.node.ledger import Charge, Ledger, Policy
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.node.telling import tell
from meshbook.runtime.telemetry.events import Kind
from meshbook.runtime.traces import name_cells
from meshbook.runtime.wire.messages import Address

logger = logging.getLogger(__name__)

ACTORS_A_LIFE = 1_000_000
OnFault = Callable[[Charge, MeshFailure], None]
Happened = Callable[[Kind, Charge, Sequence[int], str], None]


class Supervision:
    """What a node has spawned, and what it hears of it. `find` finds an owner among the actors here."""

    def __init__(
        self,
        routes: Routes,
        questions: Questions,
        find: Callable[[str], HostedActor | None],
        *,
        on_fault: OnFault,
        happened: Happened,
        life: int,
    ) -> None:
        self.ledger = Ledger()  # the meshes that were spawned from here
        self._routes = routes
        self._tell = questions.tell
        self._find = find
        self._on_fault = on_fault  # for failures of the client's meshes
        self._happened = happened
        # A node that is started again counts on: what was meant for an actor of its life before must find nobody.
        self._number = life * ACTORS_A_LIFE  # of the next actor that is spawned from here
        self._numbering = threading.Lock()  # guards _number

    def name_actor(self, name: str) -> str:
        """A key for an actor that is spawned from here: several nodes may spawn on one process."""
        with self._numbering:
            number, self._number = self._number, self._number + 1
        return f"{name}-{number}@{self._routes.own.node}"

    # -- actors here, spawned by whoever -------------------------------------------------

    def actor_failed(self, instance: Instance, error: SupervisionError) -> None:
        """An actor here has failed: its owner is told."""
        spawner = self._routes.find(spawner_of(instance.key))
        if spawner is None:
            logger.error("%s", error)  # an actor of the runtime
        else:
            self._tell(spawner, "failed", instance.key, self._routes.own.node, str(error))

    def actor_gone(self, instance: Instance, error: SupervisionError) -> None:
        """An actor here is gone. Of one that failed the owner knows, and may heal it."""
        spawner = self._routes.find(spawner_of(instance.key))
        if spawner is not None and error.__cause__ is None:
            self._tell(spawner, "over", instance.key, self._routes.own.node)

    # -- actors elsewhere, spawned from here -----------------------------------------------

    def charges_of(self, key: str) -> list[Charge]:
        """What an actor owns, the newest first."""
        return self.ledger.of(key)

    def owned_actor_failed(self, key: str, node: str, report: str) -> None:
        if (found := self.ledger.fail(key, node, name_cells(report))) is not None:
            self._happened("failed", found[0], found[1].crashed_ranks[-1:], found[1].report())
            self._supervise(*found)

    def owned_actor_over(self, key: str, node: str) -> None:
        self.ledger.end(key, [node])

    def lose(self, report: ExitReport) -> None:
        """A process has ended: whoever owns meshes on it is told, unless its own mesh sees to that."""
        told = self.ledger.lose(report.node, str(report), stopped=bool(report.stopped))
        procs = self.ledger.processes_on(report.node) if told else None
        if procs is not None:
            self._happened("failed", procs, [procs.ranks[report.node]], str(report))
        if procs is None or procs.policy is None:
            for charge, failure in told:
                tell(functools.partial(self._supervise, charge), failure)
        else:
            procs.policy.take(procs, procs.tell(str(report)), functools.partial(self._pass_on_all, procs.policy, told))

    def _pass_on_all(self, policy: Policy, told: Sequence[tuple[Charge, MeshFailure]], loss: MeshFailure) -> None:
        """The process stays dead, by this policy: what that means to others. It is not asked again for its actors."""
        for charge, failure in told:
            if charge.policy is policy:
                self.pass_on(charge, failure.also(loss.remark))
            else:
                self._supervise(charge, failure)

    def _supervise(self, charge: Charge, failure: MeshFailure) -> None:
        if charge.policy is None:
            self.pass_on(charge, failure)
        else:
            charge.policy.take(charge, failure, functools.partial(self.pass_on, charge))

    def pass_on(self, charge: Charge, failure: MeshFailure) -> None:
        """Whoever owns the mesh is told. An owner that has ended takes its meshes with it, and needs not know."""
        if charge.on_failure is not None and charge.on_failure(failure):
            return
        if not charge.owner:
            self._on_fault(charge, failure)
        elif (hosted := self._find(charge.owner)) is not None:
            hosted.supervise(charge, failure)

    def find_lost(self, targets: Sequence[Target]) -> int | None:
        """The first of these actors of a mesh that is lost, as far as that is known here."""
        failed, down = self.ledger.failed_nodes(targets[0].actor), self._routes.down
        if not failed and not down:
            return None
        nodes = enumerate(target.address.node for target in targets)
        return next((index for index, node in nodes if node in failed or node in down), None)

    def create_again(
        self, lost: Sequence[tuple[Charge, list[int]]], *, reborn: Sequence[Address]
    ) -> list[tuple[str, Future[Any]]]:
        """Create these actors again; in processes that are `reborn` there is nothing else to come from here.

        For each of them its node, and a future that tells how it went.
        """
        begun = []
        for charge, ranks in lost:
            nodes = {rank: node for node, rank in charge.ranks.items()}
            if left := [rank for rank in ranks if rank in nodes]:  # the others were stopped since somebody looked
                begun += [(nodes[rank], future) for rank, future in zip(left, charge.again(left), strict=True)]
        with self._numbering:
            number = self._number - 1
        for address in reborn if number >= 0 else ():
            self._tell(address, "renewed", self._routes.own.node, number)
        return begun


def log_fault(charge: Charge, failure: MeshFailure) -> None:
    """What becomes of a failure of the client's, unless somebody who starts the node has another idea."""
    logger.error("%s", failure)
