"""The control actor of every node: it handles the messages between nodes that are not calls of a user's actor.

failed, ended  the end of an actor that was spawned from here
cancel, where  cancel or locate a call that was sent to an actor here
report_taken   a node waits for room in the queue of an actor here
undelivered    a message of an actor here could not be delivered
probe          the deadlock watch follows a chain of waits
restarted      a process that had ended is started again
moved          the mesh of this process was resized, so its rank may have changed
recreated      a node has spawned again all actors that it will spawn again in this restarted process
recording      return the spans of this process; `clock` returns the time of its clock
offered        a node offers to send bodies through its shared memory; `accepted` is the reply
send_report    a process that sends to another one for the first time requests the report of its end
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.memory.layout import SegmentReference
from meshbook.runtime.memory.process_identity import ProcessMark
from meshbook.runtime.node.deadlock import WaitStep
from meshbook.runtime.node.execution import CallPlace
from meshbook.runtime.telemetry.spans import SpanRecording, now
from meshbook.runtime.wire.messages import Address, Place

if TYPE_CHECKING:
    from meshbook.runtime.node.node import Node

CONTROL = "control"


class ControlActor(Actor):
    """Hosted inline: each message is handled before the node receives the next one."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @endpoint
    def failed(self, key: str, node: str, report: str) -> None:
        """Handle the failure of an actor on that node, spawned from here."""
        self._node.supervision.owned_actor_failed(key, node, report)

    @endpoint
    def ended(self, key: str, node: str) -> None:
        """Handle the end of an actor on that node, spawned from here; its `__cleanup__` has run."""
        self._node.supervision.owned_actor_ended(key, node)

    @endpoint
    def undelivered(self, key: str, dest: str, error: str) -> None:
        """Handle the return of an undeliverable message without a reply, sent by this actor."""
        self._node.actors.message_returned(key, dest, error)

    @endpoint
    def cancel(self, key: str, sender: str, call: int) -> None:
        """Cancel a call on behalf of its sender."""
        self._node.actors.cancel(key, sender, call)

    @endpoint
    def report_taken(self, key: str, sender: str) -> None:
        """Report to a node that waits for room what was taken from the queue of this actor."""
        self._node.actors.report_taken(key, sender)

    @endpoint
    def where(self, key: str, sender: str, call: int) -> CallPlace:
        """Return where this call is: in the queue, or at a line of the user's code."""
        place: CallPlace = self._node.actors.where_is(key, sender, call)
        return place

    @endpoint
    def probe(self, path: list[WaitStep], key: str) -> None:
        """Follow a probe: the last actor of the path waits for this actor here."""
        self._node.actors.follow(path, key)

    @endpoint
    def restarted(self, address: Address, incarnation: int) -> None:
        """Register that a process is about to restart at the same address, as this incarnation."""
        self._node.peers.begin_again(address, incarnation)

    @endpoint
    def moved(self, place: Any, at: Place, keys: list[str]) -> None:
        """Set the place of this process (a `WorkerSpec`) and the point of these actors in the resized mesh."""
        self._node.move(place, at, keys)

    @endpoint
    def recreated(self, spawner: str, number: int) -> None:
        """Note that the spawner creates no other actors here up to this number."""
        self._node.actors.close_early(spawner, number)

    @endpoint
    def offered(self, sender: Address, number: int, probe: SegmentReference) -> None:
        """Handle the offer of a node to send large messages through its shared memory; `probe` is a piece of it."""
        self._node.bulk.handle_offer(sender, number, probe)

    @endpoint
    def accepted(self, node: str, number: int, reader: ProcessMark, why: str) -> None:
        """Handle the reply to an offer: the process `reader` can read the memory, or `why` it cannot."""
        self._node.bulk.handle_offer_reply(node, number, reader, why)

    @endpoint
    def send_report(self, node: str, sender: Address) -> None:
        """Send `sender` the report of a node if it has ended; `sender` sends to that node for the first time."""
        self._node.peers.send_report(node, sender)

    @endpoint
    def recording(self, since: int) -> SpanRecording:
        """Return the spans of this process that ended at this time (nanoseconds of its clock) or later."""
        return self._node.recorder.recording(since)

    @endpoint
    def clock(self) -> int:
        """Return the monotonic clock of this process in nanoseconds."""
        return now()
