"""The data plane of one process: what it lends, the ways it knows, and the transfers that it carries out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshbook.runtime.actor.context import context
from meshbook.runtime.memory.identity import own_mark
from meshbook.runtime.memory.local import Local
from meshbook.runtime.node.node import Node
from meshbook.runtime.rdma.chooser import Chooser
from meshbook.runtime.rdma.handle import Handle
from meshbook.runtime.rdma.leases import Leases
from meshbook.runtime.rdma.progress import InProgress, is_at
from meshbook.runtime.rdma.transfers import Transfers
from meshbook.runtime.rdma.ways import Job, Way
from meshbook.runtime.rdma.ways.process_memory import ProcessMemory
from meshbook.runtime.rdma.ways.same_process import SameProcess
from meshbook.runtime.telemetry.traffic import Traffic
from meshbook.runtime.wire.messages import Address

FIRST_LOOK, LAST_LOOK = 0.001, 0.5  # seconds between two looks at whether memory that was dropped is still in use


class Station:
    """Made once for each node, by who starts it. Costs nothing until something is lent or moved."""

    def __init__(self, node: Node, folder: Path, agent: Address | None) -> None:
        self._node = node
        self._folder = folder
        self._agent = agent
        self.leases = Leases()
        self.in_progress = InProgress(folder, node.address.node)
        allowed = [name.strip() for name in node.settings.rdma_ways.split(",") if name.strip()]
        self.ways: list[Way] = self._make_ways()
        self.chooser = Chooser(self.ways, allowed)
        self.traffic = Traffic(node.address.node)
        self.transfers = Transfers(self.chooser, lambda seconds, callback: node.later(seconds, callback), self._note)

    def _make_ways(self) -> list[Way]:
        """In the order of speed."""
        return [
            SameProcess(self._node.address, self._node.life, self.leases),
            ProcessMemory(self.in_progress),
        ]

    def _note(self, job: Job, way: str, seconds: float, is_write: bool) -> None:
        """A transfer is done."""
        self.traffic.note(job.handle.owner.node, job.local.size, way, seconds, is_write=is_write)

    # -- the owner's side ------------------------------------------------------------------

    def lend(self, local: Local, actor: str, actor_name: str) -> Handle:
        """Let others reach this memory, until `end`."""
        lease = self.leases.lend(local, actor)
        offers = {way.name: offer for way in self.ways if (offer := way.offer(local, lease)) is not None}
        handle = Handle(
            *(self._node.address, self._node.life, actor_name, own_mark(), self._agent, lease),
            *(local.address, local.size, local.device, offers),
        )
        lent = self.leases.find(lease.number)
        assert lent is not None
        lent.handle = handle
        return handle

    def end(self, number: int) -> bool:
        """Lend it no more: whoever asks from now on is refused. False where it is not lent.

        Its memory is kept until nobody on this host is at it any more.
        """
        lent = self.leases.end(number)
        if lent is None:
            return False
        self._release(lent, number, FIRST_LOOK)
        return True

    def _release(self, lent: Any, number: int, pause: float) -> None:
        if not is_at(self._folder, own_mark().pid, number):
            for way in self.ways:
                way.withdraw(lent.handle)
            return  # and with this the last that kept the memory for others
        self._node.later(pause, lambda: self._release(lent, number, min(2 * pause, LAST_LOOK)))

    def close(self) -> None:
        """Lend nothing any more, and move nothing."""
        for number in self.leases.all():
            self.leases.end(number)
        self.transfers.close()
        for way in self.ways:
            way.close()
        self.in_progress.close()


def own_station() -> Station:
    """That of the process in which this runs. RuntimeError where it moves no data."""
    station = context().actor_instance.node.station
    if station is None:
        raise RuntimeError("this process moves no data one-sidedly: it is neither a worker nor a controller of a run")
    assert isinstance(station, Station)
    return station
