"""Numbered messages for `soak.py`: senders number their messages to each receiver, and receivers check the numbers.

Peers are actors that exist for the whole run, in teams; guests are temporary actors.
"""

from __future__ import annotations

import collections
import gc
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from meshbook import Actor, ActorMesh, context, current_rank, endpoint, this_host

MOST_FAULTS = 20  # of one receiver; more would add no information


@dataclass(frozen=True)
class NumberedMessage:
    """One message to some ranks of a team, with its number for each of them."""

    sender: str
    numbers: dict[int, int]


class Outbox:
    """Numbers the messages of one sender, from 0 on for each receiver (its team and rank)."""

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self.sent: collections.Counter[tuple[str, int]] = collections.Counter()

    def write(self, team: str, ranks: Iterable[int]) -> NumberedMessage:
        """Return the next message to these ranks; send it before the next call."""
        message = NumberedMessage(self._sender, {rank: self.sent[team, rank] for rank in ranks})
        self.sent.update((team, rank) for rank in message.numbers)
        return message


class Inbox:
    """Checks that one receiver gets every number of each sender once, in order."""

    def __init__(self) -> None:
        self.received: dict[str, int] = {}  # sender -> the next number
        self.faults: list[str] = []

    def take(self, sender: str, number: int) -> None:
        due = self.received.get(sender, 0)
        if number != due and len(self.faults) < MOST_FAULTS:
            self.faults.append(f"number {number} of {sender} came when {due} was due")
        self.received[sender] = number + 1


@dataclass
class Audit:
    """The counts of a peer and its process."""

    name: str
    pid: int
    open_calls: int
    sent: dict[tuple[str, int], int]
    received: dict[str, int]
    faults: list[str] = field(default_factory=list)


class PeerMessages:
    """The common part of both kinds of peers: their identity, and the messages that they send and receive."""

    def __init__(self, team: str) -> None:
        self.rank = current_rank().rank
        self._name = f"{team} {self.rank}"
        self._inbox, self._outbox = Inbox(), Outbox(self._name)

    def take(self, message: NumberedMessage) -> tuple[int, int]:
        number = message.numbers[self.rank]
        self._inbox.take(message.sender, number)
        return self.rank, number

    def write(self, team: str, peers: ActorMesh) -> NumberedMessage:
        return self._outbox.write(team, peers.region.ranks())

    def audit(self) -> Audit:
        gc.collect()
        node = context().actor_instance.node
        box = self._inbox
        return Audit(self._name, os.getpid(), node.calls.pending, dict(self._outbox.sent), box.received, box.faults)


class Peer(Actor):
    """Receives messages, sends messages of its own, and spawns meshes."""

    def __init__(self, team: str) -> None:
        self._messages = PeerMessages(team)

    @endpoint
    def take(self, message: NumberedMessage) -> tuple[int, int]:
        return self._messages.take(message)

    @endpoint
    def cast_on(self, team: str, peers: ActorMesh, times: int) -> None:
        """Broadcast to these peers without waiting."""
        for _ in range(times):
            peers.take.broadcast(self._messages.write(team, peers))

    @endpoint
    def call_on(self, team: str, peers: ActorMesh) -> bool:
        """Call these peers and wait; returns whether each answered with its own number.

        Only towards later teams: in a circle all would wait.
        """
        message = self._messages.write(team, peers)
        return list(peers.take.call(message).get().values()) == list(message.numbers.items())

    @endpoint
    def nest(self, depth: int) -> int:
        return nest(depth)

    @endpoint
    def audit(self) -> Audit:
        return self._messages.audit()


class AsyncPeer(Actor):
    """A peer on an event loop."""

    def __init__(self, team: str) -> None:
        self._messages = PeerMessages(team)

    @endpoint
    async def take(self, message: NumberedMessage) -> tuple[int, int]:
        return self._messages.take(message)

    @endpoint
    async def cast_on(self, team: str, peers: ActorMesh, times: int) -> None:
        for _ in range(times):
            peers.take.broadcast(self._messages.write(team, peers))

    @endpoint
    async def audit(self) -> Audit:
        return self._messages.audit()


class Guest(Actor):
    """A temporary actor that answers a few messages, and prints a line for each."""

    @endpoint
    def greet(self, number: int) -> int:
        print(f"greeted with {number}")
        return number

    @endpoint
    def nest(self, depth: int) -> int:
        return nest(depth)


def nest(depth: int) -> int:
    """Spawn two processes with guests, one of which recurses while `depth` allows; returns the greetings answered."""
    procs = this_host().spawn_procs(per_host={"gpus": 2}, name="nested")
    guests = procs.spawn("guests", Guest)
    answered = sum(guests.greet.call(1).get().values())
    if depth > 1:
        answered += guests.slice(gpus=0).nest.call_one(depth - 1).get()
    procs.stop().get()
    return answered
