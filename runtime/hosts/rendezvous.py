"""Where the ranks of a mesh on several hosts meet, for torch.distributed: the agent of the first one
that lives says it to all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint

MEETINGS = "meetings"  # the actor that every agent hosts for this
REMEMBERED = 1000  # meshes; whose processes started longer ago than so many others need theirs no more


class RendezvousActor(Actor):
    """Hosted inline, so that an agent that waits for its answer waits for no other host to do its own work."""

    def __init__(self, make: Callable[[], dict[str, str]]) -> None:
        self._make = make
        self._known: OrderedDict[str, dict[str, str]] = OrderedDict()

    @endpoint
    def find(self, mesh: str) -> dict[str, str]:
        """MASTER_ADDR and MASTER_PORT of this mesh, the same for whoever asks."""
        if mesh not in self._known:
            self._known[mesh] = self._make()
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return self._known[mesh]
