"""Numbered messages for `soak.py`: senders number their messages to each receiver, and receivers check the numbers.

Peers are actors that exist for the whole run, in teams; temporary actors exist for a few calls.
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

    def next_message(self, team: str, ranks: Iterable[int]) -> NumberedMessage:
        """Return the next message to these ranks; send it before the next call."""
        message = NumberedMessage(self._sender, {rank: self.sent[team, rank] for rank in ranks})
        self.sent.update((team, rank) for rank in message.numbers)
        return message


class Inbox:
    """Checks that one receiver gets every number of each sender once, in order."""

    def __init__(self) -> None:
        self.received: dict[str, int] = {}  # sender -> the next number
        self.faults: list[str] = []

    def receive(self, sender: str, number: int) -> None:
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


class Mailbox:
    """The common part of both kinds of peers: their identity, and the messages that they send and receive."""

    def __init__(self, team: str) -> None:
        self.rank = current_rank().rank
        self._name = f"{team} {self.rank}"
        self._inbox, self._outbox = Inbox(), Outbox(self._name)

    def receive(self, message: NumberedMessage) -> tuple[int, int]:
        number = message.numbers[self.rank]
        self._inbox.receive(message.sender, number)
        return self.rank, number

    def next_message(self, team: str, peers: ActorMesh) -> NumberedMessage:
        return self._outbox.next_message(team, peers.region.ranks())

    def audit(self) -> Audit:
        gc.collect()
        node = context().actor_instance.node
        box = self._inbox
        return Audit(self._name, os.getpid(), len(node.table), dict(self._outbox.sent), box.received, box.faults)


class SyncPeer(Actor):
    """Receives messages, sends messages of its own, and spawns meshes."""

    def __init__(self, team: str) -> None:
        self._mailbox = Mailbox(team)

    @endpoint
    def receive(self, message: NumberedMessage) -> tuple[int, int]:
        return self._mailbox.receive(message)

    @endpoint
    def broadcast_to(self, team: str, peers: ActorMesh, times: int) -> None:
        """Broadcast to these peers without waiting."""
        for _ in range(times):
            peers.receive.broadcast(self._mailbox.next_message(team, peers))

    @endpoint
    def call_peers(self, team: str, peers: ActorMesh) -> bool:
        """Call these peers and wait; returns whether each answered with its own number.

        Only towards later teams: in a circle all would wait.
        """
        message = self._mailbox.next_message(team, peers)
        return list(peers.receive.call(message).get().values()) == list(message.numbers.items())

    @endpoint
    def spawn_nested(self, depth: int) -> int:
        return spawn_nested(depth)

    @endpoint
    def audit(self) -> Audit:
        return self._mailbox.audit()


class AsyncPeer(Actor):
    """A peer on an event loop."""

    def __init__(self, team: str) -> None:
        self._mailbox = Mailbox(team)

    @endpoint
    async def receive(self, message: NumberedMessage) -> tuple[int, int]:
        return self._mailbox.receive(message)

    @endpoint
    async def broadcast_to(self, team: str, peers: ActorMesh, times: int) -> None:
        for _ in range(times):
            peers.receive.broadcast(self._mailbox.next_message(team, peers))

    @endpoint
    async def audit(self) -> Audit:
        return self._mailbox.audit()


class TemporaryActor(Actor):
    """An actor for a few calls, which prints a line for each."""

    @endpoint
    def echo(self, number: int) -> int:
        print(f"echo of {number}")
        return number

    @endpoint
    def spawn_nested(self, depth: int) -> int:
        return spawn_nested(depth)


def spawn_nested(depth: int) -> int:
    """Spawn two processes, one of which recurses while `depth` allows; returns the number of answers."""
    procs = this_host().spawn_procs(per_host={"gpus": 2}, name="nested")
    temporary = procs.spawn("temporary", TemporaryActor)
    answered = sum(temporary.echo.call(1).get().values())
    if depth > 1:
        answered += temporary.slice(gpus=0).spawn_nested.call_one(depth - 1).get()
    procs.stop().get()
    return answered
