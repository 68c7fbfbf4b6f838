"""Handle the end, the restart and the handover of other nodes.

Runs on the I/O thread, except the methods marked "for any thread". The listeners `when_down` and `when_restarted` are
called on the I/O thread too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import ExitReport, RefusedMessage, SupervisionError
from meshbook.runtime.node.actors import ActorRegistry
from meshbook.runtime.node.bulk import Bulk
from meshbook.runtime.node.call_table import CallTable
from meshbook.runtime.node.casts import CastReceiver, Relay
from meshbook.runtime.node.flow_control import FlowControl
from meshbook.runtime.node.outbound import Outbound
from meshbook.runtime.node.routes import Routes, loss
from meshbook.runtime.node.supervision import ACTORS_PER_INCARNATION, Supervision
from meshbook.runtime.threads import notify, notify_all
from meshbook.runtime.transport import PeerGone
from meshbook.runtime.transport.io_loop import IoLoop
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body, pack
from meshbook.runtime.wire.messages import Address, Down, Hello, HoldRequest, Reply


class Peers:
    """Tracks the state of the other nodes and handles its changes."""

    def __init__(
        self,
        loop: IoLoop,
        routes: Routes,
        table: CallTable,
        calls: Outbound,
        flow: FlowControl,
        bulk: Bulk,
        actors: ActorRegistry,
        supervision: Supervision,
        casts: CastReceiver,
        relay: Relay,
        *,
        run: str,
        incarnation: int,
        limit: int,
    ) -> None:
        self.when_down: list[Callable[[ExitReport], None]] = []
        self.when_restarted: list[Callable[[str], None]] = []  # each gets the name of a node that had ended
        self._loop = loop
        self._routes = routes
        self._table = table
        self._calls = calls
        self._flow = flow
        self._bulk = bulk
        self._actors = actors
        self._supervision = supervision
        self._casts = casts
        self._relay = relay
        self._run = run
        self._incarnation = incarnation
        self._limit = limit

    # -- for any thread --------------------------------------------------------------

    def report_of(self, node: str) -> ExitReport | None:
        """Return the report of a node that has ended, else None."""
        return self._routes.down.get(node)

    def announce_down(self, report: ExitReport, to: Sequence[Address]) -> None:
        """Handle the end of a node here, and send Down to these nodes."""
        self.announce_all_down([report], to)

    def announce_all_down(self, reports: Sequence[ExitReport], to: Sequence[Address]) -> None:
        """Handle the end of some nodes here, and send one Down to each of these nodes."""

        def note() -> None:
            self._relay.send_all_on()  # replies that the ended nodes had sent
            self._note_down(reports)

        self._loop.run(note)
        frame = pack(Down(self._routes.own.node, list(reports)), (), self._limit)
        for peer in to:
            with contextlib.suppress(PeerGone):
                self._routes.send(peer, frame)

    def note_restarted(self, address: Address, incarnation: int) -> bool:
        """Register the restart of a node; return False if that incarnation is already known."""
        return self._loop.run(lambda: self._note_restarted(address, incarnation))

    def begin_again(self, address: Address, incarnation: int) -> None:
        """Register the restart of a node, and create again the actors that this node had spawned there."""
        if self.note_restarted(address, incarnation):
            self._supervision.create_again(
                self._supervision.ledger.heal_actors(restarted={address.node}), restarted=[address]
            )

    def ask_to_hold(self, peers: Sequence[Address]) -> list[Future[Any]]:
        """Request that these nodes hold their messages, because another process is about to be this node.

        Returns a future per peer. Once it is settled, everything that the peer has sent has arrived. `greet` makes the
        peers send again.
        """
        return self._calls.ask_to_hold(peers, self._incarnation)

    def greet(self, peers: Sequence[Address]) -> None:
        """Send Hello to these nodes, which then send their held messages and later ones."""
        for peer in peers:
            self._routes.greet_again(peer)

    def known(self) -> list[Address]:
        """Return the other known nodes that have not ended."""
        own = self._routes.own.node
        return [each for node, each in self._routes.book.items() if node != own and self.report_of(node) is None]

    @property
    def ended(self) -> dict[str, ExitReport]:
        """The reports of the nodes that have ended."""
        return dict(self._routes.down)

    # -- messages --------------------------------------------------------------------

    def on_hello(self, hello: Hello, body: Body) -> None:
        if hello.run != self._run:
            raise RefusedMessage(f"a Hello of another run from {hello.sender.node!r}")
        if hello.takes_over:
            return self._succeed(hello.sender, hello.incarnation)
        self._routes.release(hello.sender)  # if a handover was announced, it did not happen
        self._casts.stay(hello.sender.node)
        if self._routes.greet(hello.sender, hello.incarnation):
            # The agent reports the restart too, but until then this process must not be mistaken for the ended one.
            self.begin_again(hello.sender, hello.incarnation)
        return None

    def on_down(self, down: Down, body: Body) -> None:
        self._note_down(down.reports)

    def on_handover(self, handover: HoldRequest, body: Body) -> None:
        """Send nothing to a node after the reply to this, until another process is that node."""
        if not self._routes.is_new(handover.sender, handover.incarnation + 1):
            return
        peer = self._routes.address_of(handover.sender)
        reply = Reply(self._routes.own.node, handover.call, "ok")
        frame = pack(reply, pickling.dumps(None, "a reply"), self._limit)
        # The next process cannot read bodies in shared memory that were lent to the present one: send them in frames.
        self._bulk.forget(handover.sender)
        self._casts.leave(handover.sender)
        with contextlib.suppress(PeerGone):
            self._routes.hold(peer, frame, self._bulk.keep)

    def send_report(self, node: str, sender: Address) -> None:
        """Send Down to `sender` if this node has ended."""
        if (report := self.report_of(node)) is not None:
            with contextlib.suppress(PeerGone):
                self._routes.send(sender, pack(Down(self._routes.own.node, [report]), (), self._limit))

    # -- changes ------------------------------------------------------------------------

    def _note_down(self, reports: Sequence[ExitReport]) -> None:
        # By node: the table of calls is read once for all of them.
        news: dict[str, ExitReport] = {}
        for report in reports:
            # A former node has restarted, and its Hello has arrived before this Down. Calls to the earlier incarnation
            # fail.
            if self._routes.is_former(report):
                self._flow.forget({report.node})
                self._fail_calls({report.node: report})
            elif self.report_of(report.node) is None:
                self._casts.note_end(report)
                self._routes.end(report)
                self._bulk.forget(report.node)
                news[report.node] = report
        if not news:
            return
        self._flow.forget(news.keys())
        receipts = self._table.receipts(news.keys())
        self._fail_calls(news)
        for node, report in news.items():
            lose = functools.partial(self._supervision.lose, receipts=receipts.get(node, ()))
            notify_all((lambda report: self._actors.lose_spawner(report.node), lose, *self.when_down), report)

    def _note_restarted(self, address: Address, incarnation: int) -> bool:
        node = address.node
        if not self._routes.is_new(node, incarnation):
            return False
        if self.report_of(node) is None:  # the restart was reported before the end
            self._note_down([ExitReport(node, 0, None, hint="it has exited and was restarted")])
        self._actors.early.expect(node, incarnation * ACTORS_PER_INCARNATION)
        self._bulk.forget(node)
        self._casts.forget(node)
        self._routes.begin_again(address, incarnation)
        notify_all(self.when_restarted, node)
        return True

    def _succeed(self, address: Address, incarnation: int) -> None:
        """Handle a process that takes over a node: the actors it has spawned here stay, and calls to it fail."""
        node = address.node
        self._bulk.forget(node)
        if self._routes.is_new(node, incarnation):
            self._casts.forget(node)
        if not self._routes.succeed(address, incarnation):
            return
        self._flow.forget({node})
        for reply_handler, index, _ in self._table.take_all({node}):
            error = SupervisionError(f"{node} was handed over while the call was pending")
            notify(functools.partial(reply_handler.refuse, index), error)
        self._actors.close_early(node, incarnation * ACTORS_PER_INCARNATION - 1)

    def _fail_calls(self, reports: Mapping[str, ExitReport]) -> None:
        """Fail the pending calls to these nodes, which have ended."""
        for reply_handler, index, node in self._table.take_all(reports.keys()):
            notify(functools.partial(reply_handler.refuse, index), loss(reports[node]))

    def fail_all_calls(self, error: Callable[[], BaseException]) -> None:
        """Fail all pending calls, each with its own error."""
        for reply_handler, index, _ in self._table.take_all():
            notify(functools.partial(reply_handler.refuse, index), error())
