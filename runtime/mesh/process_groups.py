"""The process group of a mesh: torch.distributed's default group, created on all of its ranks from outside.

    every rank leaves its old group -> the first opens a store -> every rank joins -> the generation is incremented

No thread waits here: each step begins when the one before ends, on the thread that receives the last answer. After a
heal, the groups that contained a dead rank are recreated.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshbook.runtime.actor.future import Future, when_settled
from meshbook.runtime.collectives.membership import GroupPlan, LeftGroups
from meshbook.runtime.errors import GroupError, ProcessDied
from meshbook.runtime.gpu_errors import find_remedies
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.process_actor import ask_processes

if TYPE_CHECKING:
    from meshbook.runtime.mesh.procs import ProcMesh

GLOO = "gloo"
BOTH = "cpu:gloo,cuda:nccl"
LEAVING_S = 15.0  # time limit for ranks to leave a group: more than an abort takes
# The same if no new group follows at once: a stopped rank must not delay a heal.
FREEING_S = 3.0
SET_PORT_S = 1.0  # time limit for ranks to take a new port, once they have left
NO_GROUP = 0
REMEDY = "although its connections are closed: kill the rank, then heal() the mesh"
JOIN_S = 60.0  # time limit for the ranks to join, unless that of collectives is shorter


@dataclass(frozen=True, slots=True)
class GroupRequest:
    """The parameters of a requested group."""

    mesh: ProcMesh  # or a slice
    backend: str | None
    timeout: float | None
    is_whole: bool  # of all ranks that the mesh has, also after a resize
    is_up: bool  # its processes are known to be up; otherwise they may still be starting

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(address.node for address in self.mesh.nodes)


class ProcessGroups:
    """The groups of one mesh and its slices, in the process that owns it. A rank is in at most one of them."""

    def __init__(self) -> None:
        self.generation = 0
        self._made: list[GroupRequest] = []
        self._latest: Future[Any] = Future.completed(None)
        self._lock = threading.Lock()  # guards all of these: answers arrive on several threads

    def make(self, wanted: GroupRequest) -> Future[None]:
        """Create a group once earlier requests are settled."""
        node = current_node()
        made: Future[None] = Future.pending()
        with self._lock:
            earlier, self._latest = self._latest, made
        earlier.when_done(_GroupCreation(node, wanted, functools.partial(self._note, wanted), made).begin)
        return made

    def _note(self, wanted: GroupRequest) -> None:
        with self._lock:
            self._made = [other for other in self._made if not other.nodes & wanted.nodes] + [wanted]
            self.generation += 1

    def make_again(self, mesh: ProcMesh, restarted: Collection[int], size: int) -> list[Future[Any]]:
        """After a heal or a resize: set another rendezvous port, and recreate the groups that are not complete.

        `mesh` is the whole mesh as it is now, `restarted` are its ranks with new processes; `size` is the size before.
        """
        nodes = frozenset(address.node for address in mesh.nodes)
        new = {mesh.nodes[rank].node for rank in restarted}
        with self._lock:
            self._made = [wanted for wanted in self._made if wanted.is_whole or wanted.nodes <= nodes]
            broken = [each for each in self._made if each.nodes & new or (each.is_whole and each.nodes != nodes)]
        again = [replace(wanted, mesh=mesh if wanted.is_whole else wanted.mesh, is_up=True) for wanted in broken]
        return [abort(mesh, mesh, size), *map(self.make, again)]


def abort(mesh: ProcMesh, whole: ProcMesh, size: int | None = None) -> Future[dict[int, tuple[str, ...]]]:
    """Make all ranks of `mesh` leave their groups, and set an unused MASTER_PORT on the whole mesh.

    Resolves to the aborted groups, by rank. With a size, only ranks whose default group has this size leave. Ranks that
    are dead or do not answer are left out.
    """
    node = current_node()
    done: Future[dict[int, tuple[str, ...]]] = Future.pending()
    left = ask_processes(node, mesh, "leave_groups", size, limit=FREEING_S)
    # Rank 0 will listen there, so use a port that is free on its host. No group has size 0 (`NO_GROUP`), so this call
    # makes rank 0 leave none.
    first = ask_processes(node, _first_of(whole), "leave_groups", NO_GROUP, limit=FREEING_S)

    def go_on() -> None:
        answered = {rank: future.get() for rank, future in enumerate(left) if future.exception() is None}
        known = [future.get() for future in first if future.exception() is None] or list(answered.values())
        notified = ask_processes(node, whole, "set_master_port", known[0].free_port, limit=SET_PORT_S) if known else []
        aborted = {rank: each.aborted for rank, each in answered.items()}
        when_settled(notified, lambda: done.resolve(lambda: aborted))

    when_settled([*left, *first], go_on)
    return done


def _first_of(mesh: ProcMesh) -> ProcMesh:
    return mesh.slice(**dict.fromkeys(mesh.extent.labels, 0))


class _GroupCreation:
    """The creation of one group. `note` records the group once it exists."""

    def __init__(self, node: Any, wanted: GroupRequest, note: Callable[[], None], made: Future[None]) -> None:
        self._node = node
        self._mesh = wanted.mesh
        self._wanted = wanted
        self._note = note
        self._made = made

    def begin(self) -> None:
        limit = LEAVING_S if self._wanted.is_up else max(LEAVING_S, self._node.settings.launch_timeout)
        self._step("leave_groups", None, then=self._choose, limit=limit)

    def _choose(self, answers: list[LeftGroups]) -> None:
        stuck = [(rank, each.stuck) for rank, each in enumerate(answers) if each.stuck]
        if stuck:
            self._fail(stuck[0][0], RuntimeError(f"it still waits in {stuck[0][1]}() {REMEDY}"))
        elif self._wanted.backend is not None:
            self._open(self._wanted.backend)
        else:
            self._step("has_gpu", then=lambda have: self._open(BOTH if all(have) else GLOO))

    def _open(self, backend: str) -> None:
        alone = len(set(self._mesh.host_ranks)) == 1
        first = _first_of(self._mesh)
        self._step("open_store", alone, on=first, then=functools.partial(self._join, backend))

    def _join(self, backend: str, opened: list[tuple[str, int]]) -> None:
        timeout = self._wanted.timeout
        plan = GroupPlan(*opened[0], self._mesh.size(), backend, timeout)
        limit = min(JOIN_S, timeout or JOIN_S)
        self._step("join_group", plan, limit=limit, then=lambda _: self._end())

    def _end(self) -> None:
        self._note()
        self._made.resolve(lambda: None)

    def _step(
        self,
        endpoint: str,
        *arguments: Any,
        then: Callable[[list[Any]], None],
        on: ProcMesh | None = None,
        limit: float = LEAVING_S,
    ) -> None:
        """Ask the ranks and continue with their answers. At the first failure, free the ranks that wait for it."""
        try:
            answers = ask_processes(self._node, on or self._mesh, endpoint, *arguments, limit=limit)
        except Exception as error:  # the node is closed
            return self._made.fail(error)

        def look(rank: int) -> None:
            if (error := answers[rank].exception()) is not None and not self._made.done():
                self._fail(rank, error)

        def go_on() -> None:
            if not self._made.done():
                then([answer.get() for answer in answers])

        for rank, answer in enumerate(answers):
            answer.when_done(functools.partial(look, rank))
        when_settled(answers, go_on)
        return None

    def _fail(self, rank: int, error: BaseException) -> None:
        text = f"creating the process group of {self._mesh.name} failed: rank {rank} did not join\n{error}"
        remedies = ["restart the rank with heal() of the mesh"] if isinstance(error, ProcessDied) else []
        text = "\n".join([text, *remedies, *find_remedies([str(error)])])
        failure = GroupError(text)
        failure.__cause__ = error
        self._made.fail(failure)
        with contextlib.suppress(Exception):  # the node is closed: no process can be asked
            ask_processes(self._node, self._mesh, "leave_groups", None, limit=LEAVING_S)
