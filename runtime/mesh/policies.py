"""Automatic handling of failed ranks: `spawn_procs(..., on_failure="respawn")`, `procs.with_policy(...)`.

failure -> decide: "raise" or "respawn" -> within the limit? -> heal
                                        -> otherwise: `__supervise__`, then `unhandled_fault_hook`
"""

from __future__ import annotations

import collections
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.node.ledger import OwnedMesh
from meshbook.runtime.node.node import Node

logger = logging.getLogger(__name__)

Verdict: TypeAlias = Literal["raise", "respawn"]
OnFailure: TypeAlias = Verdict | Callable[[MeshFailure], Verdict]


@dataclass(frozen=True)
class Restarts:
    """The limit of a policy: each rank is respawned `most` times within so many seconds; later failures are raised."""

    most: int = 3
    within: float = 60.0

    def __post_init__(self) -> None:
        if self.most < 1 or not self.within > 0:
            raise ValueError(f"{self} allows no restart; use on_failure='raise' instead")


class RestartBudget:
    """The record of restarts. Pure: the time is passed in."""

    def __init__(self, limit: Restarts) -> None:
        self._limit = limit
        self._times: dict[tuple[str, int], collections.deque[float]] = {}  # by mesh and rank

    def take(self, key: str, rank: int, now: float) -> bool:
        """Return whether this rank may be restarted once more, and count the restart."""
        times = self._times.setdefault((key, rank), collections.deque())
        while times and times[0] <= now - self._limit.within:
            times.popleft()
        if len(times) >= self._limit.most:
            return False
        times.append(now)
        return True


class Respawning:
    """The policy of one process mesh, or of the meshes spawned through one handle of it.

    Failures are handled one after the other, on a thread that runs while there are any. A policy may be a function of
    the user's, and the threads that receive failures must not wait.
    """

    def __init__(self, on_failure: OnFailure, restarts: Restarts) -> None:
        self._on_failure = on_failure
        self._restarts = restarts
        self._budget = RestartBudget(restarts)
        self._lock = threading.Lock()  # guards the thread: it takes out everything that is put into the queue
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._is_running = False

    @property
    def rule(self) -> tuple[OnFailure, Restarts]:
        """The arguments that make an equal policy."""
        return self._on_failure, self._restarts

    def take(self, owned_mesh: OwnedMesh, failure: MeshFailure, otherwise: Callable[[MeshFailure], None]) -> None:
        """Queue a failure for handling. `otherwise` is called with it if the rank is not respawned."""
        process = owned_mesh.node_of(failure.crashed_ranks[-1])  # its rank may change until it is handled
        # In the context of the code that spawned the mesh, so that the heal and its output belong to that code.
        settle = functools.partial(owned_mesh.context.copy().run, self._settle, owned_mesh, process, failure, otherwise)
        try:
            with self._lock:
                if not self._is_running:
                    threading.Thread(target=self._run, name="meshbook respawning", daemon=True).start()
                    self._is_running = True
                self._waiting.put(settle)
        except RuntimeError as error:  # too many threads already run
            otherwise(failure.also(f"it could not be respawned: {error}"))

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._waiting.empty():
                    self._is_running = False
                    return
            try:
                self._waiting.get()()
            except Exception:  # a failure that cannot be handled must not block the next ones
                logger.exception("a failed rank could not be respawned")

    def _settle(
        self, owned_mesh: OwnedMesh, process: str, failure: MeshFailure, otherwise: Callable[[MeshFailure], None]
    ) -> None:
        if not owned_mesh.has_failed_on(process):  # it was healed with others, or stopped
            return
        node = current_node()
        remark = self._decide(failure)
        if remark is None:
            remark = self._respawn(node, owned_mesh, process)
        if remark is None:
            return
        if remark:
            node.send_event("given up", owned_mesh.name, owned_mesh.procs, failure.crashed_ranks[-1:], remark)
        otherwise(failure.also(remark))

    def _decide(self, failure: MeshFailure) -> str | None:
        """Return None to respawn, or else a remark for the failure, which may be empty."""
        try:
            verdict: Any = self._on_failure(failure) if callable(self._on_failure) else self._on_failure
        except BaseException as error:
            return f"on_failure raised {type(error).__name__}: {error}"
        if verdict == "respawn":
            return None
        return "" if verdict == "raise" else f'on_failure returned {verdict!r} instead of "raise" or "respawn"'

    def _respawn(self, node: Node, owned_mesh: OwnedMesh, process: str) -> str | None:
        """Restart the rank. Return the reason if it was not respawned, else None."""
        is_dead = owned_mesh.are_processes or node.peers.report_of(process) is not None
        procs = node.ledger.processes_on(process) if is_dead else None
        if is_dead and procs is None:
            return "it cannot be respawned from here: its process belongs to another owner"
        lost = procs or owned_mesh
        if (rank := lost.ranks.get(process)) is None:  # stopped while the policy decided
            return None
        if not self._budget.take(lost.key, rank, time.monotonic()):
            limit = self._restarts
            return f"it has reached its restart limit: {limit.most} in {limit.within:g} s"
        node.send_event("respawned", lost.name, lost.procs, [rank], "by the policy of its mesh")
        return _start_again(node, lost, rank)


def _start_again(node: Node, lost: OwnedMesh, rank: int) -> str | None:
    try:
        if lost.are_processes:
            lost.handle().heal_ranks([rank])
        else:
            lost.restart(node.ledger.heal(lost.key, [rank]))
    except (MeshbookError, RuntimeError) as error:
        is_stopped = node.ledger.get(lost.key) is not lost
        return None if is_stopped else f"it could not be respawned: {error}"
    except Exception as error:  # unexpected errors must still reach the owner with the failure
        logger.exception("a failed rank could not be respawned")
        return f"it could not be respawned: {type(error).__name__}: {error}"
    return None


def policy_of(on_failure: OnFailure, restarts: Restarts | None) -> Respawning | None:
    """Return the policy for failures, or None if they are raised. ValueError for an unknown word."""
    if on_failure == "raise":
        return None
    if on_failure != "respawn" and not callable(on_failure):
        raise ValueError(
            f'on_failure must be "raise", "respawn" or a function that returns one of them, not {on_failure!r}'
        )
    return Respawning(on_failure, restarts or Restarts())
