"""The node: the runtime core of each process. It builds, starts and closes the parts.

I/O thread:   frame -> dispatch -> handler by message type -> an actor's inbox, or the future of a call
any thread:   calls, replies, ports -> routes -> transport
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.future import Future
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import SupervisionError
from meshbook.runtime.node.actors import ActorRegistry
from meshbook.runtime.node.bulk import Bulk
from meshbook.runtime.node.call_table import CallTable, PerRank, Target
from meshbook.runtime.node.casts import CastReceiver, CastSender, Relay
from meshbook.runtime.node.control import CONTROL, ControlActor
from meshbook.runtime.node.dispatch import Dispatch
from meshbook.runtime.node.execution import Execution, Key
from meshbook.runtime.node.flow_control import FlowControl, QueueLimits
from meshbook.runtime.node.outbound import Outbound
from meshbook.runtime.node.peers import Peers
from meshbook.runtime.node.ports import Ports
from meshbook.runtime.node.replies import Replies
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.node.signal_handlers import SignalHandlers
from meshbook.runtime.node.supervision import ACTORS_PER_INCARNATION, OnFault, Supervision, log_fault
from meshbook.runtime.telemetry.capture import Capture
from meshbook.runtime.telemetry.events import Kind, RunEvent
from meshbook.runtime.telemetry.output import TELEMETRY
from meshbook.runtime.telemetry.point_recorder import PointRecorder
from meshbook.runtime.telemetry.points import NOTEBOOK
from meshbook.runtime.telemetry.spans import Recorder
from meshbook.runtime.telemetry.status_page import Traffic
from meshbook.runtime.telemetry.status_writer import StatusWriter
from meshbook.runtime.transport import Transport
from meshbook.runtime.transport.home import host_of
from meshbook.runtime.wire.frames import pack
from meshbook.runtime.wire.messages import (
    Address,
    Call,
    Cast,
    Credit,
    Down,
    Fence,
    Gathered,
    Hello,
    HoldRequest,
    Mark,
    Place,
    Relayed,
    Spawn,
    Stop,
)

CALLS_PER_INCARNATION = 1 << 40  # more than any process makes


class LocalHandleFactory(Protocol):
    """Makes handles for the location of this process (`runtime.mesh.places`)."""

    host: Any

    def proc(self) -> Any: ...
    def proc_mesh(self) -> Any: ...


class Node:
    """The runtime core of one process. `close()` is idempotent and fails every pending call.

    `incarnation` counts the processes that have been this node before. With `takes_over`, the actors that they have
    spawned continue.
    """

    # Set by the code that starts the node.
    run_on_main: Callable[[Callable[[], None]], None] | None = None  # of a worker: runs this on its main thread
    guide: Address | None = None  # of a worker: its agent, which has the reports of earlier ended nodes
    capture: Capture | None = None  # of a worker: its output
    signal_handlers: SignalHandlers | None = None  # of a worker: those of its user code
    place: Any = None  # `Instance.spec` of the actors here
    places: LocalHandleFactory | None = None
    on_fault: OnFault = staticmethod(log_fault)  # gets failures of the client's meshes
    # Of a client in another run: returns the place there of a port of this process.
    relay: Callable[..., tuple[Address, int]] | None = None
    data_plane: Any = None  # a `runtime.rdma.data_plane.DataPlane`, which moves bulk data
    tasks: Any = None  # a `runtime.mesh.tasks.TaskTable`: the items of maps that run here
    on_map: Callable[[Any], object] = staticmethod(
        lambda result: None
    )  # called with the result of each map that begins
    calls: Outbound
    actors: ActorRegistry
    is_leaving = False  # the process is about to end: owners get its Down instead of the end of each actor

    def __init__(
        self, transport: Transport, run: str, settings: Settings, incarnation: int = 0, *, takes_over: bool = False
    ) -> None:
        self.address = self.controller = transport.address  # the controller gets output and failures; workers set it
        self.incarnation = incarnation
        self.settings = settings
        self.run = run
        self.take_place: Callable[[Any], Any] = lambda place: place  # of a worker: applies a resize
        self.recorder = recorder = Recorder(settings.spans)
        recorder.quiet.add(TELEMETRY)
        self.status = StatusWriter()
        self.points = PointRecorder(
            lambda logged: self.calls.notify(self.controller, TELEMETRY, "logged", logged), self._place_of_points
        )
        self.loop = loop = transport.loop
        self._transport = transport
        self._closed = False
        limit, later = settings.max_message_bytes, loop.call_later
        transport.greeting = pack(Hello(self.address, run, incarnation, takes_over), (), limit)

        self.routes = routes = Routes(transport)
        routes.request_report = self._request_report
        # Call numbers continue after a restart: replies to calls of an earlier incarnation must not match a call.
        first = incarnation * CALLS_PER_INCARNATION + 1
        self.table = table = CallTable(first)
        self.bulk = bulk = Bulk(
            routes, lambda *said: self.calls.notify_control(*said), later, least=settings.shared_bytes, limit=limit
        )
        self.cast_relay = relay = Relay(routes, loop, limit)
        self.cast_receiver = received = CastReceiver(routes, relay, incarnation=incarnation, first=first, limit=limit)
        self.casts = casts = CastSender(
            *(routes, table, loop), incarnation=incarnation, least=settings.cast_ranks, limit=limit
        )
        self.replies = Replies(routes, bulk, received, limit)
        window = QueueLimits(settings.queue_messages, settings.queue_bytes)
        self.flow = FlowControl(
            *(routes, window),
            limit=limit,
            call_later=later,
            serves_here=lambda key: self.actors.is_served_here(key),
            ask=lambda target: self.calls.notify_control(
                target.address, "report_taken", target.actor, self.address.node
            ),
        )
        self.actors = actors = ActorRegistry(
            self, routes, lambda target, path: self.calls.notify_control(target.address, "probe", path, target.actor)
        )
        returned = actors.message_returned
        parts = routes, table, self.replies, self.flow, bulk, recorder, casts
        self.calls = calls = Outbound(*parts, limit=limit, call_later=later, returned=returned)
        self.ports = Ports(routes, table, bulk, limit=limit, returned=returned)
        self.supervision = supervision = Supervision(
            routes,
            calls,
            actors.find,
            on_fault=lambda owned_mesh, failure: self.on_fault(
                owned_mesh, failure
            ),  # a lambda: `on_fault` may be set later
            send_event=lambda kind, owned_mesh, ranks, text: self.send_event(
                kind, owned_mesh.name, owned_mesh.procs, ranks, text
            ),
            receipts=lambda node, actor: table.receipts({node}, actor).get(node, ()),
            incarnation=incarnation,
        )
        self.ledger = supervision.ledger
        others = loop, routes, table, calls, self.flow, bulk, actors, supervision, received, relay
        self.peers = peers = Peers(*others, run=run, incarnation=incarnation, limit=limit)
        peers.when_down.append(casts.note_end)
        peers.when_restarted.append(relay.note_restarted)
        self.dispatch = Dispatch(
            *(routes, table, calls, bulk, recorder, received),
            handlers={
                Hello: peers.on_hello,
                Spawn: actors.spawn,
                Call: actors.post,
                Stop: actors.post,
                Credit: self.flow.on_credit,
                HoldRequest: peers.on_handover,
                Down: peers.on_down,
                Cast: relay.on_cast,
                Relayed: received.on_relayed,
                Gathered: received.on_gathered,
                Mark: received.on_mark,
                Fence: received.on_fence,
            },
        )
        received.handle, received.handle_replies = self.dispatch.handle, self.dispatch.handle_gathered
        self.accept = transport.accept = self.dispatch.accept  # gets each received frame, on the I/O thread
        recorder.busy.append(actors.under_way)
        if incarnation:  # refuse messages for actors of earlier incarnations at once
            actors.early.expect(self.address.node, incarnation * ACTORS_PER_INCARNATION)
        actors.host_inline(CONTROL, ControlActor(self))

    def start(self) -> None:
        """Start to receive."""
        self._transport.start()

    def close(self, why: Callable[[], BaseException] | None = None) -> None:
        """Stop receiving; every pending call fails with a SupervisionError, or with the error from `why`."""
        if self._closed:
            return
        self.points.close()
        self._closed = True
        self.routes.close()
        self._transport.close()
        self.bulk.close()
        self.flow.close()
        shut_down = "this process's runtime was shut down while the call was pending"
        self.peers.fail_all_calls(why or (lambda: SupervisionError(shut_down)))

    @property
    def home(self) -> str:
        """The URL of the first host of the run, which is where its controller is: no other run has the same."""
        return host_of(self.controller)

    @property
    def patience(self) -> float:
        """The time limit for the end of an actor, in seconds."""
        return self.settings.stop_timeout

    def traffic(self) -> Traffic:
        """Return the messages sent and received by this node since it began, and the bytes."""
        return self.routes.messages, self.dispatch.messages, self.routes.bytes, self.dispatch.bytes

    def cast_call(self) -> Key | None:
        """Return the call that runs here, if it came from the controller through agents, and so does its reply."""
        execution = context().waiter
        key = execution.key if isinstance(execution, Execution) else None
        if key is None or key[0] != self.controller.node or not self.cast_receiver.owes(*key):
            return None
        return key

    def stop_actors(self, reason: str, *, but: str = "") -> list[Future[Any]]:
        """Stop the actors here after the messages sent to them so far, and return one future each."""
        targets = [Target(self.address, key) for key in self.actors.names() if key != but]
        reply_handler = PerRank(len(targets))
        self.calls.stop(targets, reason, reply_handler)
        return reply_handler.futures

    def send_event(self, kind: Kind, mesh: str, procs: str, ranks: Sequence[int], text: str) -> None:
        """Send the controller of this run an event of a mesh or of some of its ranks."""
        event = RunEvent(time.time(), kind, mesh, procs, tuple(ranks), text)
        self.calls.notify(self.controller, TELEMETRY, "happened", event)

    def _place_of_points(self) -> tuple[str, int]:
        return (self.place.world.mesh, self.place.rank) if self.place is not None else ("", NOTEBOOK)

    def move(self, place: Any, at: Place, keys: Collection[str]) -> None:
        """Apply a resize: set the new place of this process, and the new point of these actors in their mesh."""
        self.points.flush()  # under the rank that has logged them
        self.place = self.take_place(place)
        self.actors.move(self.place, at, keys)

    def _request_report(self, node: str) -> None:
        if self.guide is not None and node not in (self.guide.node, self.controller.node):
            self.calls.notify_control(self.guide, "send_report", node, self.address)
