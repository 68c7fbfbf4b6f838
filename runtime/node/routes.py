"""Addresses of the other nodes, the reports of ended ones, and the sending of frames.

A node is known from its Hello, or because another message carried its address. The report of an ended node is kept
until the node is started again under the same name.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence

from meshbook.runtime import monarch_texts
from meshbook.runtime.errors import ExitReport, ProcessDied, SupervisionError
from meshbook.runtime.node.ordering import SendOrder
from meshbook.runtime.threads import items_of
from meshbook.runtime.transport import PeerGone, RunEnded, Transport
from meshbook.runtime.wire.frames import Buffer, pack
from meshbook.runtime.wire.messages import Address, Fence, Mark

CONTROL_BYTES = 1 << 16  # more than any mark or fence has


class Routes:
    """The address book of one node; sends frames to the nodes in it."""

    def __init__(self, transport: Transport) -> None:
        self.own = transport.address
        self.down: dict[str, ExitReport] = {}  # how nodes ended
        self._transport = transport
        self._book: dict[str, Address] = {self.own.node: self.own}
        self.knows: Callable[[str], bool] = self._book.__contains__  # whether a node is in the book
        self.incarnation_by_node: dict[str, int] = {}  # the current incarnation of each known node, counted from 0
        self._of_ended_runs: set[str] = set()  # URLs of nodes of ended runs that handles still refer to
        self._requested: set[str] = {self.own.node}
        self._ready: set[str] = set()  # other nodes whose state was requested and that have not ended
        # Requests the state of a node: no Down arrives for a node that ended before this one began.
        self.request_report: Callable[[str], None] = lambda node: None
        self.messages = self.bytes = 0  # sent to other nodes
        self.streams: dict[str, SendOrder] = {}  # of the peers that casts or gathered replies were sent to
        self._closed = ""

    def close(self, why: str = "this process's runtime was shut down; restart it to call actors again") -> None:
        """Make `why_gone` report from now on why this node has ended, instead of the other one."""
        self._closed = self._closed or why

    @property
    def is_closed(self) -> bool:
        """Whether this node has ended."""
        return bool(self._closed)

    # -- the book ------------------------------------------------------------------

    def trust(self, peer: Address) -> None:
        """Add a peer before its Hello: the launcher has sent its address."""
        self._book[peer.node] = peer

    def learn(self, peer: Address) -> None:
        """Add an address that another message carried; the address in a node's own Hello takes precedence."""
        self._book.setdefault(peer.node, peer)

    def find(self, node: str) -> Address | None:
        return self._book.get(node)

    def address_of(self, node: str) -> Address:
        """Return the address of a node that must be in the book."""
        return self._book[node]

    def has_ended(self, address: Address) -> bool:
        """Whether a node is known to have ended, alone or with its whole run."""
        return address.node in self.down or address.url in self._of_ended_runs

    # -- ends and restarts -------------------------------------------------------------

    def greet(self, peer: Address, incarnation: int) -> bool:
        """Register a node from its Hello; return whether it may be a restart of a node that was known before."""
        self._book[peer.node] = peer
        if peer.node in self.incarnation_by_node or peer.node in self.down:
            return True
        self.incarnation_by_node[peer.node] = incarnation
        if incarnation:
            # This node may have written to the previous incarnation, which never answered. Then the connection reaches
            # the new incarnation by itself, which accepts nothing from this node before its Hello.
            self._transport.remember(peer.node, incarnation)
            with contextlib.suppress(PeerGone):
                self._transport.send(peer, self._transport.greeting)
        return False

    def is_former(self, report: ExitReport) -> bool:
        """Whether this is a late report about an incarnation before the current one."""
        return 0 <= report.incarnation < self.incarnation_by_node.get(report.node, 0)

    def is_new(self, node: str, incarnation: int) -> bool:
        """Whether this incarnation of a node is newer than the known one."""
        return incarnation > self.incarnation_by_node.get(node, 0)

    def end(self, report: ExitReport) -> None:
        """Mark a node as ended: nothing is sent there any more."""
        self.down[report.node] = report
        self._ready.discard(report.node)
        self._transport.forget(report.node)

    def begin_again(self, address: Address, incarnation: int) -> None:
        """Register the restart of a node that had ended."""
        self.incarnation_by_node[address.node] = incarnation
        self._book[address.node] = address
        self.streams.pop(address.node, None)
        del self.down[address.node]
        self._transport.remember(address.node, incarnation)

    def succeed(self, address: Address, incarnation: int) -> bool:
        """Register a process that takes over a running node; return whether that incarnation was unknown."""
        is_news = self.is_new(address.node, incarnation)
        if is_news:
            self.streams.pop(address.node, None)
            self.incarnation_by_node[address.node] = incarnation
            self._book[address.node] = address
        self._transport.release(address, anew=is_news, incarnation=incarnation)
        return is_news

    def hold(self, to: Address, last: Buffer, keep: Callable[[Buffer], Buffer]) -> None:
        """Send this frame and hold later ones until another process is that node; `keep` converts the held ones."""
        self._transport.hold(to, last, keep)

    def release(self, to: Address) -> None:
        """Send the held frames of this node, if any."""
        self._transport.release(to, anew=False)

    @property
    def book(self) -> dict[str, Address]:
        """The addresses of all known nodes, including this one."""
        return dict(self._book)

    def incarnation_of(self, node: str) -> int:
        """Return the current incarnation of a node."""
        return self.incarnation_by_node.get(node, 0)

    def greet_again(self, to: Address) -> None:
        """Send Hello to a node that may wait for it."""
        with contextlib.suppress(PeerGone):
            self._transport.send(to, self._transport.greeting)

    def incarnations(self) -> dict[str, int]:
        """Return the incarnations of the restarted nodes that have not ended."""
        return {
            node: incarnation
            for node, incarnation in items_of(self.incarnation_by_node)
            if incarnation and node not in self.down
        }

    def expect(self, incarnations: dict[str, int]) -> None:
        """Register the incarnations of nodes before their first message."""
        for node, incarnation in incarnations.items():
            self.incarnation_by_node[node] = incarnation
            self._transport.remember(node, incarnation)

    def restore(self, incarnations: dict[str, int], down: dict[str, ExitReport]) -> None:
        """Restore the state of the process that was this node before."""
        self.expect(incarnations)
        for report in down.values():
            self.end(report)

    # -- sending -------------------------------------------------------------------------

    def send(self, to: Address, frame: Buffer) -> None:
        """Send a frame from the calling thread. Raises PeerGone if that is impossible; `why_gone` makes the error."""
        if (to.node in self._ready and not (self.streams and self._is_behind(to.node))) or self._is_for_others(
            to, frame
        ):
            self._transport.send(to, frame)
            size = len(frame)
            # Without a call between the read and the write, no other thread interferes.
            self.messages += 1
            self.bytes += size
            if self.streams:
                self._note_direct(to.node)

    def send_soon(self, to: Address, frame: Buffer) -> None:
        """Send a frame like `send`, but on the I/O thread, which sends many frames at once."""
        if (to.node in self._ready and not (self.streams and self._is_behind(to.node))) or self._is_for_others(
            to, frame
        ):
            self._transport.send_soon(to, frame)
            size = len(frame)
            self.messages += 1
            self.bytes += size
            if self.streams:
                self._note_direct(to.node)

    def _is_behind(self, node: str) -> bool:
        """Whether other messages go first: casts, for which `_mark_ready` adds the node before it checks, or a copy."""
        return (stream := self.streams.get(node)) is not None and (stream.is_behind or stream.copy is not None)

    def _note_direct(self, node: str) -> None:
        if (stream := self.streams.get(node)) is not None:
            stream.direct += 1

    # -- beside casts: see `ordering` --------------------------------------------------

    def stream_to(self, node: str) -> SendOrder:
        """Return the stream to a peer, which begins with its first cast or gathered reply."""
        return self.streams.get(node) or self.streams.setdefault(node, SendOrder())

    def expect_casts(self, nodes: Sequence[str], counted: list[SendOrder]) -> None:
        """Send later messages to these nodes after casts that the caller passes to the I/O thread now.

        Adds the stream to each node to `counted` once it expects the cast.
        """
        find = self.streams.get
        for node in nodes:
            stream = find(node) or self.stream_to(node)
            stream.queued += 1
            counted.append(stream)
        if self._ready:
            self._ready.difference_update(nodes)  # only now: see `_mark_ready`

    def give_up_casts(self, to: Address, stream: SendOrder) -> None:
        """Make a node wait no longer for the casts so far, some of which are lost."""
        with contextlib.suppress(PeerGone):
            self._transport.send(to, pack(Fence(self.own.node, stream.casts, is_lost=True), (), CONTROL_BYTES))
            stream.fenced = stream.casts

    def mark(self, to: Address, stream: SendOrder) -> int:
        """Return the number of a mark that follows all direct messages so far; send it unless it was sent."""
        if (direct := stream.direct) > stream.marked:
            number = next(stream.numbers)
            self._transport.send(to, pack(Mark(self.own.node, number), (), CONTROL_BYTES))
            stream.set_mark(number, direct)
        return stream.mark

    def send_copy(self, to: Address) -> None:
        """Send output directly that has been sent with a reply and may not have arrived, before a direct message."""
        if (stream := self.streams.get(to.node)) is None or (copy := stream.copy) is None:
            return
        self._transport.send(to, copy)
        self.messages += 1
        self.bytes += len(copy)
        stream.direct += 1
        # Only now: a thread that finds no copy sends behind it. Other output may have been sent meanwhile.
        if stream.copy is copy:
            stream.copy = None

    def _send_behind(self, to: Address, frame: Buffer, stream: SendOrder) -> None:
        """Send a frame behind the casts before it. Runs on the I/O thread, as their sending does."""
        if to.node in self.down or self.streams.get(to.node) is not stream:
            return  # its Down, also of an earlier incarnation, has failed the call
        with contextlib.suppress(PeerGone):  # the same
            if stream.fenced != stream.casts:
                self._transport.send(to, pack(Fence(self.own.node, stream.casts), (), CONTROL_BYTES))
                stream.fenced = stream.casts
            self._transport.send(to, frame)
        self.messages += 1
        self.bytes += len(frame)
        stream.direct += 1
        stream.done += 1  # only now: from here on other threads may send directly
        self._mark_ready(to.node)

    def _mark_ready(self, node: str) -> bool:
        """Let all threads send to a node directly, unless messages for it are still on their way; return whether."""
        self._ready.add(node)
        # Only now: another thread may have passed a cast on meanwhile, or the node may have ended.
        stream = self.streams.get(node)
        if node in self.down or (stream is not None and stream.is_behind):
            self._ready.discard(node)
            return False
        return True

    def have_left(self, to: Address) -> bool:
        """Whether all frames for this node have left this process, and need not be sent again."""
        stream = self.streams.get(to.node)
        return self._transport.have_left(to) and (stream is None or stream.copy is None)

    def _is_for_others(self, to: Address, frame: Buffer) -> bool:
        """Whether a frame must be sent; deliver a frame for this node itself. Raises PeerGone for an ended node."""
        node = to.node
        if node in self.down:
            raise PeerGone
        self.meet(node)
        if node != self.own.node:
            self.send_copy(to)
            if self._mark_ready(node) or (stream := self.streams.get(node)) is None:
                return True
            if self._closed:
                raise PeerGone
            stream.queued += 1
            self._ready.discard(node)
            self._transport.loop.call_soon(functools.partial(self._send_behind, to, frame, stream))
            return False
        if to.url != self.own.url:  # an earlier controller of this process
            raise RunEnded("its run has ended: this process called close_session()")
        # Deliver on the I/O thread as well: it alone owns the state that the handlers change.
        self._transport.loop.call_soon(functools.partial(self._transport.accept, frame))
        return False

    def meet(self, node: str) -> None:
        """Request the state of a node on its first use here, as it may have ended long ago."""
        if node not in self._requested:
            self._requested.add(node)
            self.request_report(node)

    def why_gone(self, to: Address, gone: PeerGone) -> SupervisionError:
        """Convert an unreachable peer into the caller's error."""
        report = self.down.get(to.node)
        if report is not None:
            return loss(report)
        if self._closed:
            return SupervisionError(self._closed)
        if isinstance(gone, RunEnded):
            self._of_ended_runs.add(to.url)
            return SupervisionError(f"{monarch_texts.STOPPED_WITH_PROCS}: {gone}")
        return SupervisionError(f"node {to.node} is gone: {gone}")


def loss(report: ExitReport) -> SupervisionError:
    """Convert the end of a node into the caller's error; ProcessDied unless it was stopped on purpose."""
    return SupervisionError(str(report)) if report.stopped else ProcessDied(str(report), report)
