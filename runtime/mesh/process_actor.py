"""The interface of the runtime's actor on every worker, and calls of it on a whole mesh.

`runtime.hosts.worker` implements the interface.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future, when_settled
from meshbook.runtime.actor.ports import Port
from meshbook.runtime.collectives.membership import GroupPlan, LeftGroups
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.tasks import UnstartedItems
from meshbook.runtime.node.call_table import PerRank, Target
from meshbook.runtime.telemetry.output import LogOptions
from meshbook.runtime.telemetry.traffic import TransferRecord, TransferTable, table_of

if TYPE_CHECKING:
    from meshbook.runtime.mesh.procs import ProcMesh

PROCESS = "process"  # its name, the same in each process
ANSWER_S = 5.0  # time limit for a rank's answer; a rank that is stopped, or holds the GIL in C, does not answer


class ProcessActor(Actor):
    """The calls that every worker answers on its control thread, also while its main thread is busy.

    Only names and types, for callers: this module is below the worker that subclasses this.
    """

    @endpoint
    def ready(self) -> int:
        """Return the process id, once the worker can take messages."""
        raise NotImplementedError

    @endpoint
    def set_logging(self, level: int, options: LogOptions) -> None:
        """Set the root logger's level, and how the client handles the output from now on."""
        raise NotImplementedError

    @endpoint
    def fence(self, fence: str) -> None:
        """Record that all earlier messages of the sender to this process have arrived."""
        raise NotImplementedError

    @endpoint
    def stop(self, reason: str, fence: str = "") -> None:
        """Stop the actors and exit, once this fence has arrived."""
        raise NotImplementedError

    @endpoint
    def leave_groups(self, size: int | None) -> LeftGroups:
        """Abort torch's process groups in this process; with a size, only if the default group has this size."""
        raise NotImplementedError

    @endpoint
    def has_gpu(self) -> bool:
        """Return whether this process has a GPU of its own."""
        raise NotImplementedError

    @endpoint
    def set_master_port(self, port: int) -> None:
        """Make `init_process_group()` use this port for the rendezvous, unless the user has set another one."""
        raise NotImplementedError

    @endpoint
    def open_store(self, is_alone: bool) -> tuple[str, int]:
        """Open the store for the rendezvous of a process group; `is_alone`: all of its ranks are on this host."""
        raise NotImplementedError

    @endpoint(explicit_response_port=True)
    def join_group(self, port: Port[None], plan: GroupPlan) -> None:
        """Join the process group that is being created. Answers when all ranks have joined."""
        raise NotImplementedError

    @endpoint
    def take_back(self, key: str, number: int, items: list[int]) -> UnstartedItems:
        """Withdraw those items of a map's request that have not begun here. Return them, and the outcomes so far."""
        raise NotImplementedError

    @endpoint
    def transfers(self) -> list[TransferRecord]:
        """Return the transfers of this process between its memory and that of others."""
        raise NotImplementedError

    @endpoint
    def slow(self, seconds: float, latency: float) -> None:
        """For tests: for `seconds`, delay all outgoing messages by `latency` seconds."""
        raise NotImplementedError

    @endpoint
    def cut(self, seconds: float) -> None:
        """For tests: hold all outgoing and incoming messages for so many seconds. None is lost."""
        raise NotImplementedError

    @endpoint
    def mend(self) -> None:
        """End `slow` and `cut`. Answers once all held messages have been sent."""
        raise NotImplementedError


def ask_processes(node: Any, mesh: ProcMesh, endpoint: str, *arguments: Any, limit: float) -> Sequence[Future[Any]]:
    """Call an endpoint of the processes of a mesh or slice, on their control threads; one future each."""
    targets = [Target(address, PROCESS) for address in mesh.nodes]
    reply_handler = PerRank(len(targets))
    node.calls.send(targets, endpoint, (arguments, {}), mesh.extent, reply_handler)
    node.calls.limit(reply_handler.futures, limit, name=endpoint, count=len(targets), first=0)
    return reply_handler.futures


def ask_transfers(mesh: ProcMesh) -> Future[TransferTable]:
    """Return the rows of all ranks that answer, in rank order, and those rows of this process that a rank owns."""
    node = current_node()
    ranks = {address.node: f"rank {rank}" for rank, address in enumerate(mesh.nodes)}
    own = node.data_plane.traffic.rows() if node.data_plane is not None else []
    if set(ranks) == {node.address.node}:  # a client's own process hosts no process actor to call
        return Future.completed(table_of(own, (), lambda name: ranks.get(name, name)))
    done: Future[TransferTable] = Future.pending()
    asked = ask_processes(node, mesh, "transfers", limit=ANSWER_S)

    def put_together() -> None:
        rows = [row for future in asked if future.exception() is None for row in future.get()]
        if node.address.node not in ranks:
            rows += [row for row in own if row.owner in ranks]
        silent = [name for name, future in zip(ranks, asked, strict=True) if future.exception() is not None]
        done.resolve(lambda: table_of(rows, silent, lambda name: ranks.get(name, name)))

    when_settled(asked, put_together)
    return done
