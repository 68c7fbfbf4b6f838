"""The keeper: the actor of every node that hears what concerns the actors there, and is no message to one of them.

failed, over   what became of actors that were spawned from here
cancel, where  about a call that was sent to an actor here
undelivered    a message that an actor here has sent, and that nobody could take
probe          a question that follows who waits for whom
reborn         a process that had ended is started again
moved          the mesh of this process was resized: its rank may be another one
renewed        of what a node had spawned here before that, nothing more is to come
recording      what this process has recorded of its doings; `clock`: what its clock says
offered        a node asks whether this process can read its shared memory; `accepted` is the answer
fate           a process that counts on another one for the first time asks how that has ended, if it has
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.memory.identity import ProcessMark
from meshbook.runtime.memory.layout import Reference
from meshbook.runtime.node.bulk import Bulk
from meshbook.runtime.node.deadlock import Step
from meshbook.runtime.telemetry.spans import Recording, now
from meshbook.runtime.wire.messages import Address, Place

KEEPER = "keeper"


class Kept(Protocol):
    """What the keeper needs of its node. Nothing of it waits."""

    def owned_actor_failed(self, key: str, node: str, report: str) -> None: ...
    def owned_actor_over(self, key: str, node: str) -> None: ...
    def message_returned(self, key: str, dest: str, error: str) -> None: ...
    def break_off(self, key: str, sender: str, call: int) -> None: ...
    def where_is(self, key: str, sender: str, call: int) -> str: ...
    def follow(self, path: list[Step], key: str) -> None: ...
    def begin_again(self, address: Address, life: int) -> None: ...
    def close_early(self, spawner: str, number: int) -> None: ...
    def move(self, place: Any, at: Place, keys: Collection[str]) -> None: ...

    bulk: Bulk

    def tell_fate(self, node: str, asker: Address) -> None: ...
    def recording(self, since: int) -> Recording: ...


class Keeper(Actor):
    """Hosted inline: what it does is done before the next message is received."""

    def __init__(self, node: Kept) -> None:
        self._node = node

    @endpoint
    def failed(self, key: str, node: str, report: str) -> None:
        """An actor on that node, spawned from here, has failed."""
        self._node.owned_actor_failed(key, node, report)

    @endpoint
    def over(self, key: str, node: str) -> None:
        """An actor on that node, spawned from here, is gone, its `__cleanup__` included."""
        self._node.owned_actor_over(key, node)

    @endpoint
    def undelivered(self, key: str, dest: str, error: str) -> None:
        """A message that nobody answers, sent by this actor, could not be delivered."""
        self._node.message_returned(key, dest, error)

    @endpoint
    def cancel(self, key: str, sender: str, call: int) -> None:
        """The sender does not want the answer to this call any more."""
        self._node.break_off(key, sender, call)

    @endpoint
    def where(self, key: str, sender: str, call: int) -> str:
        """Where this call is: in the queue, or at which line of the user's."""
        return self._node.where_is(key, sender, call)

    @endpoint
    def probe(self, path: list[Step], key: str) -> None:
        """The last actor of the path waits for this one, which is here."""
        self._node.follow(path, key)

    @endpoint
    def reborn(self, address: Address, life: int) -> None:
        """This process is about to be started again, at the same address; `life` counts those it has had."""
        self._node.begin_again(address, life)

    @endpoint
    def moved(self, place: Any, at: Place, keys: list[str]) -> None:
        """This process has this place now (a `runtime.mesh.Birth`), and these actors this point of their mesh."""
        self._node.move(place, at, keys)

    @endpoint
    def renewed(self, spawner: str, number: int) -> None:
        """Up to this number the spawner has created here again what it will create."""
        self._node.close_early(spawner, number)

    @endpoint
    def offered(self, sender: Address, number: int, probe: Reference) -> None:
        """That node would send large messages through its shared memory, of which this is a piece."""
        self._node.bulk.heed_offer(sender, number, probe)

    @endpoint
    def accepted(self, node: str, number: int, reader: ProcessMark, why: str) -> None:
        """That node, which is this process, can read what is offered; or `why` it cannot."""
        self._node.bulk.heed_answer(node, number, reader, why)

    @endpoint
    def fate(self, node: str, asker: Address) -> None:
        """The asker counts on this node for the first time, and is told how it has ended, if it has."""
        self._node.tell_fate(node, asker)

    @endpoint
    def recording(self, since: int) -> Recording:
        """The spans of this process that ended at this time (nanoseconds of its clock) or later."""
        return self._node.recording(since)

    @endpoint
    def clock(self) -> int:
        """Nanoseconds of the monotonic clock here."""
        return now()
