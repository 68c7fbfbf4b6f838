"""The interface of the runtime's actor on every worker; `runtime.hosts.worker` implements it."""

from __future__ import annotations

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.ports import Port
from meshbook.runtime.collectives.membership import GroupPlan, LeftGroups
from meshbook.runtime.mesh.tasks import UnstartedItems
from meshbook.runtime.telemetry.output import LogOptions
from meshbook.runtime.telemetry.traffic import TransferRecord

PROCESS = "process"  # its name, the same in each process


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
