"""The rendezvous of a mesh on several hosts, for torch.distributed: the agent of its first live host provides it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint

RENDEZVOUS = "rendezvous"  # the actor that every agent hosts for this
REMEMBERED = 1000  # meshes; older ones are dropped, since their processes have started long ago


class RendezvousActor(Actor):
    """Provides the rendezvous of each mesh. Hosted inline: it answers while this agent waits for another host."""

    def __init__(self, make: Callable[[], dict[str, str]]) -> None:
        self._make = make
        self._known: OrderedDict[str, dict[str, str]] = OrderedDict()

    @endpoint
    def find(self, mesh: str) -> dict[str, str]:
        """Return MASTER_ADDR and MASTER_PORT of this mesh, the same for every caller."""
        if mesh not in self._known:
            self._known[mesh] = self._make()
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return self._known[mesh]
