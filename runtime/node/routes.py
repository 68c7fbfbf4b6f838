"""Where the other nodes are, which of them have ended, and the sending of frames to them.

A node is known from its Hello, or because its address came with something else. Of one that has ended the report is
kept, until it is started again under the same name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from meshbook.runtime import texts
from meshbook.runtime.errors import ExitReport, ProcessDied, SupervisionError
from meshbook.runtime.snapshots import items_of
from meshbook.runtime.transport import PeerGone, RunEnded, Transport
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address


class Routes:
    """The address book of one node. `deliver` takes the frames that it sends to itself."""

    def __init__(self, transport: Transport, deliver: Callable[[Buffer], None]) -> None:
        self.own = transport.address
        self.down: dict[str, ExitReport] = {}  # how nodes ended
        self._transport = transport
        self._deliver = deliver
        self._book: dict[str, Address] = {self.own.node: self.own}
        self._lives: dict[str, int] = {}  # of nodes that were heard of: how many they have had before the present one
        self._of_ended_runs: set[str] = set()  # the URLs of nodes that somebody still has handles of
        self._asked_after: set[str] = {self.own.node}
        # Asks what has become of a node: of those that ended before this one began nobody tells it.
        self.ask_after: Callable[[str], None] = lambda node: None
        self.messages = self.bytes = 0  # that went to others
        self._closed = False

    def close(self) -> None:
        """From now on who finds no way is told that this node has ended, and not the other one."""
        self._closed = True

    # -- the book ------------------------------------------------------------------

    def trust(self, peer: Address) -> None:
        """Know a peer before its Hello: one whose address came from the launcher."""
        self._book[peer.node] = peer

    def learn(self, peer: Address) -> None:
        """Note an address that came with something else; what a node says of itself counts more."""
        self._book.setdefault(peer.node, peer)

    def knows(self, node: str) -> bool:
        return node in self._book

    def find(self, node: str) -> Address | None:
        return self._book.get(node)

    def address_of(self, node: str) -> Address:
        """Where a node is that is known to be in the book."""
        return self._book[node]

    def has_ended(self, address: Address) -> bool:
        """Whether a node is known to have ended, maybe with its whole run."""
        return address.node in self.down or address.url in self._of_ended_runs

    def report_of(self, node: str) -> ExitReport | None:
        """How a node ended, where it has."""
        return self.down.get(node)

    # -- ends, and new beginnings ------------------------------------------------------

    def greet(self, peer: Address, life: int) -> bool:
        """Take up what a node says of itself; whether it may be one that had ended, and is there again."""
        self._book[peer.node] = peer
        if peer.node in self._lives or peer.node in self.down:
            return True
        self._lives[peer.node] = life
        if life:
            # Maybe this node has written to the one before, which never answered: the connection has found the new one
            # by itself, and that takes nothing from who has not greeted it.
            self._transport.remember(peer.node, life)
            with contextlib.suppress(PeerGone):
                self._transport.send(peer, self._transport.greeting)
        return False

    def is_former(self, report: ExitReport) -> bool:
        """Whether this is the end of a life before the present one, told late."""
        return 0 <= report.life < self._lives.get(report.node, 0)

    def is_new(self, node: str, life: int) -> bool:
        """Whether this life of a node is one that was not heard of yet."""
        return life > self._lives.get(node, 0)

    def end(self, report: ExitReport) -> None:
        """A node has ended: nothing goes there any more."""
        self.down[report.node] = report
        self._transport.forget(report.node)

    def begin_again(self, address: Address, life: int) -> None:
        """A node that had ended is started again."""
        self._lives[address.node] = life
        self._book[address.node] = address
        del self.down[address.node]
        self._transport.remember(address.node, life)

    def succeed(self, address: Address, life: int) -> bool:
        """Another process is this node now, and goes on with what the one before did; whether that is news."""
        is_news = self.is_new(address.node, life)
        if is_news:
            self._lives[address.node] = life
            self._book[address.node] = address
        self._transport.release(address, anew=is_news)
        return is_news

    def hold(self, to: Address, last: Buffer, keep: Callable[[Buffer], Buffer]) -> None:
        """Send this frame, and nothing after it until another process is that node; `keep` makes it fit for that."""
        self._transport.hold(to, last, keep)

    def release(self, to: Address) -> None:
        """Send what was held for this node, if something is."""
        self._transport.release(to, anew=False)

    @property
    def book(self) -> dict[str, Address]:
        """Where the nodes are that are known, this one among them."""
        return dict(self._book)

    def all_lives(self) -> dict[str, int]:
        """Of the nodes that were heard of, how many they have had before the present one."""
        return dict(self._lives)

    def greet_again(self, to: Address) -> None:
        """Say Hello to a node that may wait for it."""
        with contextlib.suppress(PeerGone):
            self._transport.send(to, self._transport.greeting)

    def lives(self) -> dict[str, int]:
        """Of the nodes that have been there before: how many times."""
        return {node: life for node, life in items_of(self._lives) if life and node not in self.down}

    def expect(self, lives: dict[str, int]) -> None:
        """Know of these, before anything was heard of them."""
        for node, life in lives.items():
            self._lives[node] = life
            self._transport.remember(node, life)

    def restore(self, lives: dict[str, int], down: dict[str, ExitReport]) -> None:
        """Know what the process has known that was this node before."""
        self.expect(lives)
        for report in down.values():
            self.end(report)

    # -- sending -------------------------------------------------------------------------

    def send(self, to: Address, frame: Buffer) -> None:
        """Send a frame from the calling thread. PeerGone where nobody takes it: `why_gone` has the words for that."""
        if to.node in self.down:
            raise PeerGone
        if to.node not in self._asked_after:
            self.meet(to.node)
        if to.node != self.own.node:
            self._transport.send(to, frame)
            size = len(frame)
            # Two threads do not meet in these, for there is no call in them; at worst a message would not be counted.
            self.messages += 1
            self.bytes += size
        elif to.url == self.own.url:
            self._deliver(frame)
        else:  # another controller of this process, before this one
            raise RunEnded("its run has ended: this process called close_session()")

    def meet(self, node: str) -> None:
        """Somebody here counts on this node for the first time: it may have ended long ago."""
        if node not in self._asked_after:
            self._asked_after.add(node)
            self.ask_after(node)

    def why_gone(self, to: Address, gone: PeerGone) -> SupervisionError:
        """What it means to who asked that nothing can be sent there."""
        report = self.down.get(to.node)
        if report is not None:
            return loss(report)
        if self._closed:
            return SupervisionError("this process's runtime was shut down; restart it to call actors again")
        if isinstance(gone, RunEnded):
            self._of_ended_runs.add(to.url)
            return SupervisionError(f"{texts.STOPPED_WITH_PROCS}: {gone}")
        return SupervisionError(f"node {to.node} is gone: {gone}")


def loss(report: ExitReport) -> SupervisionError:
    """What an ended node means to who asked it: a fault, or that it had been stopped on purpose."""
    return SupervisionError(str(report)) if report.stopped else ProcessDied(str(report), report)
