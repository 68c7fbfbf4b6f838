"""How the processes of a mesh were started, so that each of them can be started again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import msgspec

from meshbook.runtime.actor.future import Future
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.birth import Birth
from meshbook.runtime.mesh.ends import mark_unborn
from meshbook.runtime.wire.messages import Address

Ask = Callable[[Address, list[Birth]], Future[None]]


class Births:
    """The births of a mesh, by rank, and on which host each is; `ask` asks a host's agent for some."""

    def __init__(self, agents: Sequence[Address], births: Sequence[Birth], ask: Ask) -> None:
        self._agents = agents
        self._births = list(births)
        self._ask = ask

    def start(self, ranks: Sequence[int]) -> None:
        """Ask for these processes; whoever waits for one that cannot be started is told."""
        for agent, group in itertools.groupby(ranks, self._agents.__getitem__):
            births = [self._births[rank] for rank in group]
            mark_unborn(self._ask(agent, births), births)

    def start_again(self, ranks: Sequence[int]) -> None:
        """Ask for these processes once more: they have died."""
        node = current_node()
        for rank in ranks:
            before = self._births[rank]
            birth = self._births[rank] = msgspec.structs.replace(before, life=before.life + 1)
            node.note_reborn(birth.address, birth.life)
        self.start(ranks)
