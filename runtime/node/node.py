"""The node: every process runs one. It puts together who receives, asks, answers, hosts actors and looks after them.

    frame -> unpack -> handler by message type -> an actor's queue, or the future that waits

Whoever waits receives (see `reception`); sends go out from whoever sends. A node knows a sender by its Hello, and
drops what comes from anybody else, counting it. What it does for others is in the files that it puts together here:
`asking`, `answering`, `ports`, `directory` and `supervision`, all on top of `routes`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from meshbook.runtime.actor.context import Instance
from meshbook.runtime.actor.future import Future
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import ExitReport, RefusedMessage, SupervisionError
from meshbook.runtime.geometry import Extent
from meshbook.runtime.node.answering import Answers
from meshbook.runtime.node.asking import Questions, plan
from meshbook.runtime.node.bulk import Bulk
from meshbook.runtime.node.calls import Asker, CallTable, Each, Target
from meshbook.runtime.node.clock import Clock
from meshbook.runtime.node.credits import Window
from meshbook.runtime.node.deadlock import Step
from meshbook.runtime.node.directory import Directory
from meshbook.runtime.node.failures import rebuild_error
from meshbook.runtime.node.keeper import KEEPER, Keeper
from meshbook.runtime.node.ports import Ports
from meshbook.runtime.node.pressure import Pressure
from meshbook.runtime.node.reception import Reception
from meshbook.runtime.node.routes import Routes, loss
from meshbook.runtime.node.supervision import ACTORS_A_LIFE, OnFault, Supervision, log_fault
from meshbook.runtime.node.telling import tell, tell_all
from meshbook.runtime.telemetry.capture import Capture
from meshbook.runtime.telemetry.events import Event, Kind
from meshbook.runtime.telemetry.output import TELEMETRY
from meshbook.runtime.telemetry.page import Traffic
from meshbook.runtime.telemetry.signs import Signs
from meshbook.runtime.telemetry.spans import Recorder, Recording, now
from meshbook.runtime.transport import PeerGone, Transport
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body, Buffer, Elsewhere, pack, unpack
from meshbook.runtime.wire.messages import Address, Call, Credit, Down, Handover, Hello, Place, Reply, Spawn, Stop

logger = logging.getLogger(__name__)

CROWD = 16  # open calls of a process from which on answers are taken in by the bunch
CALLS_A_LIFE = 1 << 40  # more than any process makes


class Places(Protocol):
    """Makes handles of where this process is (`runtime.mesh.places`)."""

    host: Any

    def proc(self) -> Any: ...
    def proc_mesh(self) -> Any: ...


class Node:
    """The runtime core of one process. `close()` is idempotent; every call still open then fails.

    `life` counts the processes that have been this node before; `takes_over`: what those had spawned goes on.
    """

    def __init__(
        self, transport: Transport, run: str, settings: Settings, life: int = 0, *, takes_over: bool = False
    ) -> None:
        self.address = transport.address
        self.life = life
        self.settings = settings
        self.run = run
        self.refused = 0  # frames dropped since the start; the first of each kind is logged
        self.when_down: list[Callable[[ExitReport], None]] = []
        self.when_over: list[Callable[[Instance], None]] = []  # told of an actor that has ended, here
        self.when_reborn: list[Callable[[str], None]] = []  # told the name of a node that had ended
        # Held while an end, or a new beginning, of another node is noted everywhere here: who asks in between would
        # see half of it.
        self.noting = threading.RLock()
        self.run_on_main: Callable[[Callable[[], None]], None] | None = None  # workers lend their main thread
        self.controller = transport.address  # where output and failures go; a worker is told another one
        self.guide: Address | None = None  # of a worker: its agent, who knows what was before it
        self.capture: Capture | None = None  # of a worker: where its output goes
        self.place: Any = None  # what `Instance.birth` of the actors here is
        self.places: Places | None = None  # set by who starts the node
        self.take_place: Callable[[Any], Any] = lambda place: place  # of a worker: what it does in a mesh resized
        self.on_fault: OnFault = log_fault  # for failures of the client's meshes
        self.station: Any = None  # a `runtime.rdma.Station`: how this process moves bulk data; set by its starter
        self.is_leaving = False  # the process is about to end: nobody needs to hear of each actor's end
        self.recorder = Recorder(settings.spans)
        self.recorder.quiet.add(TELEMETRY)
        self.signs = Signs()
        self._transport = transport
        self._transport.greeting = pack(Hello(self.address, run, life, takes_over), (), settings.max_message_bytes)
        self._clock = Clock()
        self.later = self._clock.later
        # A node that is started again counts on: what still answers to calls of its life before must find nobody.
        self._calls = CallTable(life * CALLS_A_LIFE + 1)
        self._reception = Reception(transport, self._accept, lambda: len(self._calls) > CROWD)
        self.lead_idle, self.poke = self._reception.lead_idle, self._reception.poke
        self._routes = Routes(transport, self._accept)
        self._routes.ask_after = self._ask_after
        self.trust, self.has_ended, self.report_of = self._routes.trust, self._routes.has_ended, self._routes.report_of
        self.lives, self.expect = self._routes.lives, self._routes.expect
        self.all_lives, self.restore = self._routes.all_lives, self._routes.restore
        self._logged: set[str] = set()
        self._closed = False
        limit = settings.max_message_bytes

        def later(seconds: float, callback: Callable[[], object]) -> None:
            self.later(seconds, callback)  # by the clock of then: tests have their own

        self.bulk = Bulk(self._routes, self._tell_keeper, later, least=settings.shared_bytes, limit=limit)
        self._answers = Answers(self._routes, self.bulk, limit)

        self._pressure = Pressure(
            *(self._routes, self._reception, Window(settings.queue_messages, settings.queue_bytes)),
            limit=limit,
            later=later,
            serves_here=self._serves_here,
        )
        self.window, self.grant = self._pressure.window, self._pressure.grant
        self._directory = Directory(self, self._routes)
        ways = self._routes, self._calls, self._reception
        returned = self._directory.message_returned
        self._questions = Questions(
            *(*ways, self._answers, self._pressure, self.bulk, self.recorder),
            limit=limit,
            later=later,
            returned=returned,
        )
        self._ports = Ports(*ways, self.bulk, limit=limit, returned=returned)
        self._supervision = Supervision(
            self._routes,
            self._questions,
            self._directory.find,
            on_fault=lambda charge, failure: self.on_fault(charge, failure),  # the one that is set by then
            happened=lambda kind, charge, ranks, text: self.tell_event(kind, charge.name, charge.procs, ranks, text),
            life=life,
        )
        self._handlers: dict[type, Callable[[Any, Body], None]] = {
            Hello: self._on_hello,
            Spawn: self._directory.spawn,
            Call: self._directory.post,
            Stop: self._directory.post,
            Reply: self._on_reply,
            Credit: self._pressure.on_credit,
            Handover: self._on_handover,
            Down: self._on_down,
        }
        self._lend_methods()
        if life:  # what was for actors of the lives before waits for nobody
            self._directory.early.expect(self.address.node, life * ACTORS_A_LIFE)
        self._directory.host_inline(KEEPER, Keeper(self))

    def _lend_methods(self) -> None:
        # What others call here is taken over as it is: a call goes through many of these, and each detour would count.
        answers, here, asking, ports = self._answers, self._directory, self._questions, self._ports
        self.reply, self.reply_error, self.reply_lost = answers.reply, answers.reply_error, answers.reply_lost
        self.port_to = answers.port_to
        self.host, self.host_inline, self.actors = here.host, here.host_inline, here.actors
        self.actor_over, self.release_actors = here.actor_over, here.release_actors
        self.make_running, self.break_off, self.where_is = here.make_running, here.break_off, here.where_is
        self.follow, self.close_early, self.message_returned = here.follow, here.close_early, here.message_returned
        self.loads = here.loads
        self.recorder.busy.append(here.under_way)
        self.find_node = self._routes.find
        self._tell, self.return_message = asking.tell, asking.return_message
        self.call, self.call_for_port, self.limit = asking.call, asking.call_for_port, asking.limit
        self.adopt = asking.adopt
        self.plan, self.create, self.stop = plan, asking.create, asking.stop
        self.open_port, self.close_port = ports.open_port, ports.close_port
        self.send_to_port, self.fail_port = ports.send_to_port, ports.fail_port
        over = self._supervision
        self.ledger, self.charges_of, self.name_actor = over.ledger, over.charges_of, over.name_actor
        self.actor_failed, self.actor_gone, self.find_lost = over.actor_failed, over.actor_gone, over.find_lost
        self.owned_actor_failed, self.owned_actor_over = over.owned_actor_failed, over.owned_actor_over
        self.create_again, self.pass_on = over.create_again, over.pass_on

    def start(self) -> None:
        """Begin to receive."""
        self._reception.start()

    def close(self, why: Callable[[], BaseException] | None = None) -> None:
        """Stop receiving; whoever still waits gets a SupervisionError, or what `why` makes."""
        if self._closed:
            return
        self._closed = True
        self._routes.close()
        self._clock.close()
        self._transport.close()
        self.bulk.close()
        self._pressure.close()
        self._reception.join()
        shut_down = "this process's runtime was shut down while the call was open"
        self._fail_all(None, why or (lambda: SupervisionError(shut_down)))

    def terminate(self) -> None:
        """After `close`: wait until another node of this name can be in its place."""
        self._transport.terminate()

    @property
    def open_calls(self) -> int:
        """How many calls from here still wait for an answer."""
        return len(self._calls)

    @property
    def patience(self) -> float:
        """How many seconds an actor may take to end."""
        return self.settings.stop_timeout

    def spawn(
        self,
        targets: Sequence[Target],
        construct: tuple[type, Any, Any],
        extent: Extent,
        asker: Asker,
        *,
        on_main: bool = False,
    ) -> None:
        """Create an actor at each target, on a thread of its own or on the process's main thread.

        The asker is answered once each is constructed. Raises PickleError and MessageTooLarge before anything is sent.
        """
        self.create(plan(targets, construct, extent, on_main=on_main), range(len(targets)), asker)

    def send_probe(self, target: Target, path: list[Step]) -> None:
        """Ask the keeper of this actor whom that waits for."""
        self._tell(target.address, "probe", path, target.actor)

    def recording(self, since: int) -> Recording:
        """What this process has recorded from this time on, by its monotonic clock in nanoseconds."""
        return self.recorder.recording(since)

    def traffic(self) -> Traffic:
        """What this node has sent to others, and received, since it began."""
        sent, received = self._routes, self._reception
        return sent.messages, received.messages, sent.bytes, received.bytes

    def tell_event(self, kind: Kind, mesh: str, procs: str, ranks: Sequence[int], text: str) -> None:
        """Let the controller of this run note what has happened to a mesh, or to these ranks of it."""
        event = Event(time.time(), kind, mesh, procs, tuple(ranks), text)
        self.call([Target(self.controller, TELEMETRY)], "happened", ((event,), {}), Extent((), ()), None)

    def move(self, place: Any, at: Place, keys: Collection[str]) -> None:
        """Have another place, since the mesh of this process was resized; these actors are at this point of it."""
        self.place = self.take_place(place)
        self._directory.move(self.place, at, keys)

    def _tell_keeper(self, to: Address, endpoint: str, *said: Any) -> None:
        self._tell(to, endpoint, *said)

    def _serves_here(self, key: str) -> bool:
        return self._directory.is_served_here(key)

    # -- ends and new beginnings of other nodes ------------------------------------

    def announce_down(self, report: ExitReport, to: Sequence[Address]) -> None:
        """Tell these nodes, and this one, that a node has ended."""
        frame = pack(Down(self.address.node, report), (), self.settings.max_message_bytes)
        self._note_down(report)
        for peer in to:
            try:
                self._routes.send(peer, frame)
            except PeerGone:
                continue

    def begin_again(self, address: Address, life: int) -> None:
        """A node that had ended is there again, or soon: create again what is this node's business there."""
        if self.note_reborn(address, life):
            self.create_again(self.ledger.heal_actors(reborn={address.node}), reborn=[address])

    def _ask_after(self, node: str) -> None:
        if self.guide is not None and node not in (self.guide.node, self.controller.node):
            self._tell(self.guide, "fate", node, self.address)

    def tell_fate(self, node: str, asker: Address) -> None:
        """Tell a node that has just begun how another one has ended, if it has."""
        if (report := self.report_of(node)) is not None:
            with contextlib.suppress(PeerGone):
                self._routes.send(asker, pack(Down(self.address.node, report), (), self.settings.max_message_bytes))

    def note_reborn(self, address: Address, life: int) -> bool:
        """Clear what is known of the end of a node that is started again; False where that was known already."""
        node = address.node
        with self.noting:
            if not self._routes.is_new(node, life):
                return False
            if self.report_of(node) is None:  # the news has overtaken that of its end
                self._note_down(ExitReport(node, 0, None, hint="it has ended, and was started again"))
            self._directory.early.expect(node, life * ACTORS_A_LIFE)
            self.bulk.forget(node)
            self._routes.begin_again(address, life)
            tell_all(self.when_reborn, node)
        return True

    def _note_down(self, report: ExitReport) -> None:
        node = report.node
        with self.noting:
            if self._routes.is_former(report):
                # It is there again, and has said so before this came. Who asked it before is told nevertheless.
                self._pressure.forget(node)
                return self._fail_all(node, lambda: loss(report))
            if self.report_of(node) is not None:
                return None
            self._routes.end(report)
            self._pressure.forget(node)
            self.bulk.forget(node)
            self._fail_all(node, lambda: loss(report))
            tell_all((self._lose_spawner, self._supervision.lose, *self.when_down), report)
        return None

    def _lose_spawner(self, report: ExitReport) -> None:
        self._directory.lose_spawner(report.node)

    def _fail_all(self, node: str | None, error: Callable[[], BaseException]) -> None:
        # They are out of the table: whoever is not told now never is.
        for asker, index in self._calls.take_all(node):
            tell(functools.partial(asker.refuse, index), error())

    # -- when another process becomes a node ---------------------------------------

    def ask_to_hold(self, peers: Sequence[Address]) -> list[Future[Any]]:
        """Ask these nodes to send nothing here any more: another process is about to be this node.

        A future each: once it is settled, all that it has sent has come. `greet` takes it back.
        """
        asker = Each(len(peers))
        self._questions.ask_to_hold(peers, asker, self.life)
        return asker.futures

    def peers(self) -> list[Address]:
        """The other nodes that are known, and have not ended."""
        book = self._routes.book.items()
        return [address for node, address in book if node != self.address.node and self.report_of(node) is None]

    @property
    def ended(self) -> dict[str, ExitReport]:
        """How other nodes have ended."""
        return dict(self._routes.down)

    def replay(self, frame: Buffer) -> None:
        """Take in what came before this node received anything."""
        self._accept(frame)

    def greet(self, peers: Sequence[Address]) -> None:
        """Let these nodes send here, what they have held among it."""
        for peer in peers:
            self._routes.greet_again(peer)

    def _on_handover(self, handover: Handover, body: Body) -> None:
        if self._routes.is_new(handover.sender, handover.life + 1):
            self._hold(handover)

    def _hold(self, handover: Handover) -> None:
        asker = self._routes.address_of(handover.sender)
        answer = Reply(self.address.node, handover.call, "ok")
        frame = pack(answer, pickling.dumps(None, "an answer"), self.settings.max_message_bytes)
        # What is in memory of this process is for the one that is there now: the next is given all of it.
        self.bulk.forget(handover.sender)
        with contextlib.suppress(PeerGone):
            self._routes.hold(asker, frame, self.bulk.keep)

    def _succeed(self, address: Address, life: int) -> None:
        """Another process is this node now: what it had spawned here stays, what it was asked nobody answers."""
        node = address.node
        with self.noting:
            self.bulk.forget(node)
            if not self._routes.succeed(address, life):
                return
            self._pressure.forget(node)
            self._fail_all(node, lambda: SupervisionError(f"{node} was handed over while the call was open"))
            self._directory.close_early(node, life * ACTORS_A_LIFE - 1)

    # -- receiving -----------------------------------------------------------------

    def _accept(self, frame: Buffer) -> None:
        try:
            message, packed = unpack(frame)
            if not isinstance(message, Hello) and not self._routes.knows(message.sender):
                raise RefusedMessage(f"a {type(message).__name__} from {message.sender!r}, who has not said Hello")
            self._handlers[type(message)](message, self._open(packed) if isinstance(packed, Elsewhere) else packed)
        except RefusedMessage as error:
            self._refuse(error)

    def _open(self, body: Elsewhere) -> Body:
        self._reception.bytes += body.size
        return self.bulk.open(body)

    def _refuse(self, error: RefusedMessage) -> None:
        self.refused += 1
        kind = str(error)[:40]
        if kind not in self._logged and len(self._logged) < 100:
            self._logged.add(kind)
            logger.warning("node %s refused a message: %s", self.address.node, error)

    def _on_hello(self, hello: Hello, body: Body) -> None:
        if hello.run != self.run:
            raise RefusedMessage(f"a Hello of another run from {hello.sender.node!r}")
        if hello.takes_over:
            return self._succeed(hello.sender, hello.life)
        self._routes.release(hello.sender)  # it stays after all
        if self._routes.greet(hello.sender, hello.life):
            # The agent says so as well, but who answers now must not take it for the one that has ended.
            self.begin_again(hello.sender, hello.life)
        return None

    def _on_reply(self, reply: Reply, body: Body) -> None:
        found = self._calls.take(reply.call, reply.rank)
        if found is None:
            # A port that is closed. Or answered before: the node was declared down, and this reply was still under way.
            return self.return_message(reply, f"port {reply.call}", "nobody receives there any more")
        if self.recorder.on:
            self.recorder.mark((now(), "", reply.call))
        asker, index = found
        if reply.status == "ok":
            asker.answer(index, lambda: pickling.loads(body, "the result of an endpoint"))
        else:
            asker.refuse(index, rebuild_error(reply.status, body))
        return None

    def _on_down(self, down: Down, body: Body) -> None:
        self._note_down(down.report)
