"""How the processes of a mesh were started, so that each can be started again, and more like them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec

from meshbook.runtime.actor.future import Future
from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.birth import WorkerSpec
from meshbook.runtime.mesh.commands import Start
from meshbook.runtime.mesh.ends import mark_unborn
from meshbook.runtime.wire.messages import Address

Ask = Callable[[Address, list[WorkerSpec]], Future[None]]
PlanStarts = Callable[[Extent, int], list[Start]]  # for a mesh of this extent, with so many processes on each host


class WorkerSpecs:
    """The births of a mesh, by rank; `ask` asks a host's agent for some, `plan_starts` says how each is started."""

    def __init__(self, births: Sequence[WorkerSpec], ask: Ask, plan_starts: PlanStarts, used: int = 0) -> None:
        self._births = list(births)
        self._ask = ask
        self._plan_starts = plan_starts
        self._used = used or len(births)  # numbers in names: a resize brings others, and each is used once

    def __getitem__(self, rank: int) -> WorkerSpec:
        return self._births[rank]

    @property
    def all(self) -> tuple[WorkerSpec, ...]:
        """All of them, by rank."""
        return tuple(self._births)

    @property
    def plan(self) -> PlanStarts:
        return self._plan_starts

    @property
    def used(self) -> int:
        """How many names were given to processes of this mesh so far."""
        return self._used

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where the processes are, by rank."""
        return tuple(birth.address for birth in self._births)

    def resize(self, stays: Sequence[int | None], extent: Extent) -> None:
        """Have a mesh of this extent: for each rank which one it has been, or none. The new ones are not started.

        ValueError where nothing says how to start those.
        """
        before, local = self._births, self._births[0].local_size
        firsts = before[::local]  # of each host
        local = extent.nelements // len(firsts)
        starts = self._plan_starts(extent, local) if None in stays else []
        births = [
            before[old] if old is not None else self._new(firsts[rank // local], starts[rank])
            for rank, old in enumerate(stays)
        ]
        nodes = tuple(birth.address for birth in births)
        worlds = [msgspec.structs.replace(first.world, sizes=extent.sizes, nodes=nodes) for first in firsts]
        self._births = [
            msgspec.structs.replace(
                birth, rank=rank, local_rank=rank % local, local_size=local, world=worlds[rank // local]
            )
            for rank, birth in enumerate(births)
        ]

    def _new(self, like: WorkerSpec, start: Start) -> WorkerSpec:
        node = f"{like.world.mesh}.{self._used}"
        self._used += 1
        url = like.address.url.removesuffix(like.address.node) + node
        return msgspec.structs.replace(like, address=Address(node, url), start=start, life=0)

    def start(self, ranks: Sequence[int]) -> None:
        """Ask for these processes; whoever waits for one that cannot be started is told."""
        for agent, group in itertools.groupby((self._births[rank] for rank in ranks), lambda birth: birth.world.agent):
            births = list(group)
            mark_unborn(self._ask(agent, births), births)

    def start_again(self, ranks: Sequence[int]) -> None:
        """Ask for these processes once more: they have died."""
        node = current_node()
        for rank in ranks:
            before = self._births[rank]
            birth = self._births[rank] = msgspec.structs.replace(before, life=before.life + 1)
            node.peers.note_reborn(birth.address, birth.life)
        self.start(ranks)
