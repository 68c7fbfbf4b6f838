"""The actor of the runtime that every worker hosts, as others see it; the doing is in `runtime.hosts.worker`."""

from __future__ import annotations

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.ports import Port
from meshbook.runtime.collectives.membership import GroupPlan, LeftGroups
from meshbook.runtime.mesh.tasks import UnstartedItems
from meshbook.runtime.telemetry.output import LogOptions
from meshbook.runtime.telemetry.traffic import TransferRecord

PROCESS = "process"  # its name, the same in each


class ProcessActor(Actor):
    """What every worker answers on its control thread, also while its main thread is busy.

    Names and types alone, for callers: they stand on a lower floor than the worker that subclasses this.
    """

    @endpoint
    def ready(self) -> int:
        """The process id, once the worker can take messages."""
        raise NotImplementedError

    @endpoint
    def set_logging(self, level: int, options: LogOptions) -> None:
        """Set the root logger's level, and what the client does with the output from here on."""
        raise NotImplementedError

    @endpoint
    def fence(self, fence: str) -> None:
        """All that its sender has sent to this process before it is here."""
        raise NotImplementedError

    @endpoint
    def stop(self, reason: str, fence: str = "") -> None:
        """Stop the actors and leave the process, once this fence is here."""
        raise NotImplementedError

    @endpoint
    def leave_groups(self, size: int | None) -> LeftGroups:
        """Abort the process groups of torch in this process; with a size, only where the default one has so many."""
        raise NotImplementedError

    @endpoint
    def has_gpu(self) -> bool:
        """Whether there is a GPU for this process alone."""
        raise NotImplementedError

    @endpoint
    def set_master_port(self, port: int) -> None:
        """Let `init_process_group()` meet at this port, unless the user has named another one."""
        raise NotImplementedError

    @endpoint
    def open_store(self, is_alone: bool) -> tuple[str, int]:
        """Open the store in which a process group meets; `is_alone`: all of its ranks are on this host."""
        raise NotImplementedError

    @endpoint(explicit_response_port=True)
    def join_group(self, port: Port[None], plan: GroupPlan) -> None:
        """Join the process group that is being made; answered when all ranks have."""
        raise NotImplementedError

    @endpoint
    def take_back(self, key: str, number: int, items: list[int]) -> UnstartedItems:
        """Give back those items of a request of a map that have not begun here, and say what is done."""
        raise NotImplementedError

    @endpoint
    def transfers(self) -> list[TransferRecord]:
        """What this process has moved between its memory and that of others."""
        raise NotImplementedError

    @endpoint
    def slow(self, seconds: float, latency: float) -> None:
        """For tests: for so long let what this process sends leave so many seconds late."""
        raise NotImplementedError

    @endpoint
    def cut(self, seconds: float) -> None:
        """For tests: for so long let nothing leave this process, and nothing come in. Nothing is lost."""
        raise NotImplementedError

    @endpoint
    def mend(self) -> None:
        """End what is left of both; answered once everything that was held has left."""
        raise NotImplementedError
