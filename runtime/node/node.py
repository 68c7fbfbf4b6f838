"""The node: every process runs one. An inbox, the routes to other nodes, the table of open calls, and hosted actors.

    frame -> unpack -> handler by message type -> an actor's queue, or the future that waits

Whoever waits receives (see `reception`); sends go out from whoever sends. A node knows a sender by its Hello, and
drops what comes from anybody else, counting it.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from meshbook.runtime import texts
from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import CURRENT, Instance, context, current_origin, name_of, spawner_of
from meshbook.runtime.actor.failure import MeshFailure, UndeliverableMessageEnvelope
from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.ports import ResponsePort
from meshbook.runtime.config import Settings
from meshbook.runtime.errors import (
    ExitReport,
    MeshbookError,
    MessageTooLarge,
    ProcessDied,
    RefusedMessage,
    SupervisionError,
)
from meshbook.runtime.geometry import Extent, Point
from meshbook.runtime.node.calls import Asker, CallTable, Desk, Each, Explain, Inquiry, Relay, Taker, Target, Unanswered
from meshbook.runtime.node.clock import Clock
from meshbook.runtime.node.deadlock import Step, Watch
from meshbook.runtime.node.early import EarlyMessages
from meshbook.runtime.node.failures import pack_error, pickle_exception, rebuild_error
from meshbook.runtime.node.hosting import HostedActor, InlineActor
from meshbook.runtime.node.identity import creator_of, instance_of, point_of
from meshbook.runtime.node.keeper import KEEPER, Keeper
from meshbook.runtime.node.ledger import Charge, Ledger
from meshbook.runtime.node.limits import TimeLimit
from meshbook.runtime.node.mailbox import Mailbox
from meshbook.runtime.node.reception import Reception
from meshbook.runtime.node.running import Running
from meshbook.runtime.telemetry.capture import Capture
from meshbook.runtime.traces import name_cells
from meshbook.runtime.transport import PeerGone, RunEnded, Transport
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body, Buffer, pack, unpack
from meshbook.runtime.wire.messages import Address, Call, Creator, Down, Hello, Reply, Spawn, Stop

logger = logging.getLogger(__name__)

CROWD = 16  # open calls of a process from which on answers are taken in by the bunch


NOWHERE = Extent((), ())
REMEMBERED = 4096  # actors that have ended, of which the node still knows why
CALLS_A_LIFE = 1 << 40  # more than any process makes
ACTORS_A_LIFE = 1_000_000
Question = Spawn | Call | Stop
OnFault = Callable[[Charge, MeshFailure], None]


class Places(Protocol):
    """Makes handles of where this process is (`runtime.mesh.places`)."""

    host: Any

    def proc(self) -> Any: ...
    def proc_mesh(self) -> Any: ...


@dataclass(frozen=True)
class Creation:
    """How the actors of a mesh are created. Kept by their owner, so that those that are lost can be created again."""

    targets: tuple[Target, ...]  # by rank
    extent: Extent
    body: Body  # a copy: what the caller changes afterwards does not show
    origin: str
    creator: Creator | None
    on_main: bool


class Node:
    """The runtime core of one process. `close()` is idempotent; every call still open then fails."""

    def __init__(self, transport: Transport, run: str, settings: Settings, life: int = 0) -> None:
        self.address = transport.address
        self.settings = settings
        self.run = run
        self.refused = 0  # frames dropped since the start; the first of each kind is logged
        self.when_down: list[Callable[[ExitReport], None]] = []
        self.when_reborn: list[Callable[[str], None]] = []  # told the name of a node that had ended
        # Held while an end, or a new beginning, of another node is noted everywhere here: who asks in between would
        # see half of it.
        self.noting = threading.RLock()
        self.run_on_main: Callable[[Callable[[], None]], None] | None = None  # workers lend their main thread
        self.controller = transport.address  # where output and failures go; a worker is told another one
        self.capture: Capture | None = None  # of a worker: where its output goes
        self.place: Any = None  # what `Instance.birth` of the actors here is
        self.places: Places | None = None  # set by who starts the node
        self.ledger = Ledger()  # the meshes that were spawned from here
        self.on_fault: OnFault = _log_fault  # for failures of the client's meshes
        self.is_leaving = False  # the process is about to end: nobody needs to hear of each actor's end
        self._transport = transport
        self._transport.greeting = pack(Hello(self.address, run, life), (), settings.max_message_bytes)
        # A node that is started again counts on: what still answers to calls of its life before must find nobody.
        self._calls = CallTable(life * CALLS_A_LIFE + 1)
        self._number = life * ACTORS_A_LIFE  # of the next actor that is spawned from here
        self._numbering = threading.Lock()  # guards _number
        self._actors: dict[str, HostedActor] = {}
        self._heirs: dict[str, Callable[[], None]] = {}  # begins an actor once the one that it replaces is over
        self._replacing = threading.Lock()  # guards _heirs, and who of two actors is meant by a key
        self._ended: OrderedDict[str, str] = OrderedDict()  # why actors are no more; the oldest are forgotten
        self._early = EarlyMessages()
        self._clock = Clock()
        self.later = self._clock.later
        self._book: dict[str, Address] = {self.address.node: self.address}
        self._down: dict[str, ExitReport] = {}
        self._lives: dict[str, int] = {}  # of nodes that were heard of: how many they have had before the present one
        self._of_ended_runs: set[str] = set()  # the URLs of nodes that somebody still has handles of
        self._logged: set[str] = set()
        self._closed = False
        self._handlers: dict[type, Callable[[Any, Body], None]] = {
            Hello: self._on_hello,
            Spawn: self._on_spawn,
            Call: self._on_message,
            Stop: self._on_message,
            Reply: self._on_reply,
            Down: self._on_down,
        }
        self._reception = Reception(transport, self._accept, lambda: len(self._calls) > CROWD)
        self._desk = Desk(self._calls, self._reception, self._tell_cancelled)
        self.lead_idle, self.poke = self._reception.lead_idle, self._reception.poke
        self._watch = Watch(self.address.node, self._who_runs, self._send_probe, self.later)
        self.host_inline(KEEPER, Keeper(self))

    def start(self) -> None:
        """Begin to receive."""
        self._reception.start()

    def close(self) -> None:
        """Stop receiving; whoever still waits gets a SupervisionError."""
        if self._closed:
            return
        self._closed = True
        self._clock.close()
        self._transport.close()
        self._reception.join()
        self._fail_all(None, lambda: SupervisionError("this process's runtime was shut down while the call was open"))

    def trust(self, peer: Address) -> None:
        """Know a peer before its Hello: one whose address came from the launcher."""
        self._book[peer.node] = peer

    def name_actor(self, name: str) -> str:
        """A key for an actor that is spawned from here: several nodes may spawn on one process."""
        with self._numbering:
            number, self._number = self._number, self._number + 1
        return f"{name}-{number}@{self.address.node}"

    # -- hosting -------------------------------------------------------------

    def host(
        self, name: str, make: Callable[[], Actor], *, rank: Point | None = None, class_name: str = ""
    ) -> HostedActor:
        """Host an actor that this process makes itself; the caller runs it (`start` or `run`)."""
        return self._host(HostedActor, name, make, rank, class_name)

    def host_inline(self, name: str, actor: Actor) -> None:
        """Host an actor of the runtime whose endpoints run on the receiving thread and never wait."""
        hosted = self._host(InlineActor, name, lambda: actor, None, type(actor).__qualname__)
        # In a context of its own: the caller is no part of that actor.
        contextvars.copy_context().run(hosted.construct, lambda error: None)

    def actors(self) -> list[str]:
        """The names of the actors that live here, without those that run on the receiving thread."""
        return [key for key, hosted in list(self._actors.items()) if not isinstance(hosted, InlineActor)]

    def release_actors(self) -> None:
        """Let go of the actors' objects, once all have ended, so that their finalisers run."""
        for hosted in self._actors.values():
            hosted.release()

    def _host(
        self,
        kind: type[HostedActor],
        key: str,
        make: Callable[[], Actor],
        rank: Point | None,
        class_name: str,
        creator: Instance | None = None,
    ) -> HostedActor:
        place = rank or NOWHERE.point(0)
        instance = Instance(key, class_name or "actor", place, self, self.place, creator)
        hosted = self._actors[key] = kind(self, instance, make)
        return hosted

    # -- asking --------------------------------------------------------------

    @property
    def open_calls(self) -> int:
        """How many calls from here still wait for an answer."""
        return len(self._calls)

    def call(
        self,
        targets: Sequence[Target],
        endpoint: str,
        arguments: Any,
        extent: Extent,
        asker: Asker | None,
        *,
        first: int = 0,
        port: tuple[Address, int] | None = None,
    ) -> None:
        """Send one call to each target: the ranks of `extent` from `first` on. Without an asker no answer comes here.

        With a port each target answers there by itself, and nobody tells the port of a process that dies meanwhile.
        Raises PickleError and MessageTooLarge at once, before anything is sent.
        """
        body = pickling.dumps(arguments, lambda: f"an argument of {name_of(targets[0].actor)}.{endpoint}")
        node, origin, labels, sizes = self.address.node, current_origin(), extent.labels, extent.sizes
        reply_to, number = port if port is not None else (None, 0)
        calls = self._open(targets, asker, endpoint) if asker is not None else [number] * len(targets)
        by = _sender(targets) if asker is None and port is None else ""
        messages = [
            Call(node, call, target.actor, endpoint, (rank, labels, sizes), origin, target.manner, reply_to, by)
            for rank, (target, call) in enumerate(zip(targets, calls, strict=True), first)
        ]
        self._ask(targets, messages, body)

    def call_for_port(
        self,
        targets: Sequence[Target],
        endpoint: str,
        arguments: Any,
        extent: Extent,
        port: tuple[Address, int],
        *,
        first: int = 0,
        explain: Explain,
    ) -> None:
        """Call each target once, like `call`; the answers go to a port of any node.

        A port of this node is told of every target that cannot answer, too.
        """
        if port[0].node == self.address.node:
            relay = Relay(self._calls, port[1], first, explain)
            self.call(targets, endpoint, arguments, extent, relay, first=first)
        else:
            self.call(targets, endpoint, arguments, extent, None, first=first, port=port)

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
        self.create(self.plan(targets, construct, extent, on_main=on_main), range(len(targets)), asker)

    def plan(
        self, targets: Sequence[Target], construct: tuple[type, Any, Any], extent: Extent, *, on_main: bool
    ) -> Creation:
        """What creates an actor at each target, any number of times: the arguments are those of now."""
        body = pickling.dumps(construct, f"an argument of {construct[0].__qualname__}")
        creator = creator_of(context().actor_instance)
        kept = [part if isinstance(part, bytes) else bytes(part) for part in body]
        return Creation(tuple(targets), extent, kept, current_origin(), creator, on_main)

    def create(self, creation: Creation, ranks: Sequence[int], asker: Asker, *, again: bool = False) -> None:
        """Create the actors of these ranks; `again`: they have been there before."""
        targets = [creation.targets[rank] for rank in ranks]
        labels, sizes, origin = creation.extent.labels, creation.extent.sizes, current_origin() or creation.origin
        calls = self._open(targets, asker, "__init__")
        messages = [
            Spawn(
                *(self.address.node, call, target.actor, (rank, labels, sizes), origin),
                creator=creation.creator,
                on_main=creation.on_main,
                again=again,
            )
            for rank, target, call in zip(ranks, targets, calls, strict=True)
        ]
        self._ask(targets, messages, creation.body)

    def stop(self, targets: Sequence[Target], reason: str, asker: Asker) -> None:
        """End the actors after the messages they have been sent so far."""
        calls = self._open(targets, asker, "stop")
        messages = [
            Stop(self.address.node, call, target.actor, reason) for target, call in zip(targets, calls, strict=True)
        ]
        self._ask(targets, messages, ())

    def _open(self, targets: Sequence[Target], asker: Asker, endpoint: str) -> Sequence[int]:
        calls = self._calls.open(asker, [target.address.node for target in targets])
        asker.asked(Inquiry(self._desk, targets, calls, endpoint))
        return calls

    def limit(self, future: Future[Any], seconds: float, *, name: str, count: int, first: int) -> None:
        """Let a call fail where it is not answered in time."""
        inquiry = future.inquiry
        assert isinstance(inquiry, Inquiry)
        TimeLimit(self, inquiry, seconds, name=name, count=count, first=first)

    def ask_where(self, silent: Sequence[Unanswered], asker: Each) -> None:
        """Ask the keepers of these calls where those are."""
        keepers = [Target(target.address, KEEPER) for _, target, _ in silent]
        calls = self._open(keepers, asker, "where")
        for (_, target, number), keeper, call in zip(silent, keepers, calls, strict=True):
            message = Call(self.address.node, call, KEEPER, "where", (0, (), ()), "")
            body = pickling.dumps(((target.actor, self.address.node, number), {}), "a question")
            self._ask([keeper], [message], body)

    def _tell_cancelled(self, target: Target, call: int) -> None:
        self._tell(target.address, "cancel", target.actor, self.address.node, call)

    def _tell(self, to: Address, endpoint: str, *arguments: Any) -> None:
        """Tell the keeper of another node, or our own."""
        self.call([Target(to, KEEPER)], endpoint, (arguments, {}), NOWHERE, None)

    def _ask(self, targets: Sequence[Target], messages: Sequence[Question], body: Body) -> None:
        limit = self.settings.max_message_bytes
        for target, message in zip(targets, messages, strict=True):
            try:
                frame = pack(message, body, limit)
            except MeshbookError:
                for opened in messages:
                    self._take_back(opened)
                raise
            self._send_question(target.address, frame, message)

    def _send_question(self, to: Address, frame: Buffer, question: Question) -> None:
        # The call is in the table already: a Down that comes from now on finds it there.
        try:
            if to.node in self._down:
                raise PeerGone
            self._send(to, frame)
        except PeerGone as gone:
            error = self._why_gone(to, gone)
            if (found := self._take_back(question)) is not None:
                found[0].refuse(found[1], error)
            elif isinstance(question, Call) and question.reply_to is not None:
                self._book.setdefault(question.reply_to.node, question.reply_to)
                self.reply_lost(question.reply_to.node, question.call, error)
            elif isinstance(question, Call):
                self.message_returned(question.by, f"{to.node}/{question.actor}", str(error))

    def _take_back(self, question: Question) -> tuple[Taker, int] | None:
        """Whoever waits here for this question. One for a port bears the port's number, maybe of another node."""
        is_for_port = isinstance(question, Call) and question.reply_to is not None
        return None if is_for_port else self._calls.take(question.call)

    def _send(self, to: Address, frame: Buffer) -> None:
        if to.node == self.address.node:
            if to.url != self.address.url:  # another controller of this process, before this one
                raise RunEnded("its run has ended: this process called close_session()")
            self._accept(frame)
        else:
            self._transport.send(to, frame)

    def _why_gone(self, to: Address, gone: PeerGone) -> SupervisionError:
        report = self._down.get(to.node)
        if report is not None:
            return _loss(report)
        if self._closed:
            return SupervisionError("this process's runtime was shut down; restart it to call actors again")
        if isinstance(gone, RunEnded):
            self._of_ended_runs.add(to.url)
            return SupervisionError(f"{texts.STOPPED_WITH_PROCS}: {gone}")
        return SupervisionError(f"node {to.node} is gone: {gone}")

    # -- answering (Host) ------------------------------------------------------

    def reply(self, to: str, call: int, value: Any, what: str, rank: int = 0) -> None:
        try:
            reply = Reply(self.address.node, call, "ok", rank)
            frame = pack(reply, pickling.dumps(value, what), self.settings.max_message_bytes)
        except MessageTooLarge as error:
            return self.reply_lost(to, call, SupervisionError(f"{what}: {error}"))
        except MeshbookError as error:
            return self.reply_error(to, call, str(error), error)
        return self._answer(to, frame)

    def port_to(self, node: str, call: int, rank: int, settled: Callable[[], object]) -> ResponsePort[Any]:
        return ResponsePort(self._book[node], call, rank, settled)

    # -- ports -----------------------------------------------------------------

    def open_port(self, *, once: bool) -> tuple[int, Mailbox]:
        """A number that values can be sent to, and where they come in."""
        mailbox = Mailbox(once)
        mailbox.helped_by(self._reception)
        return self._calls.open_port(mailbox, once=once), mailbox

    def close_port(self, number: int) -> None:
        """From now on what is sent there is dropped."""
        self._calls.close_port(number)

    def send_to_port(self, to: Address, number: int, rank: int, value: Any, *, returns: bool) -> None:
        """Send a value to a port of any node, as this rank; number 0 is nobody's. PickleError, MessageTooLarge.

        Where it `returns`, an actor that sends it hears that nobody receives there.
        """
        if number:
            reply = Reply(self.address.node, number, "ok", rank, _own_key() if returns else "")
            body = pickling.dumps(value, "a value sent to a port")
            self._send_to(to, reply, pack(reply, body, self.settings.max_message_bytes))

    def fail_port(self, to: Address, number: int, error: BaseException, *, returns: bool) -> None:
        """Let whoever receives there raise this error, or an ActorError of its text where it cannot travel."""
        if number:
            text = f"{type(error).__name__}: {error}"
            # One that is no Exception would end whoever it is raised in.
            status: Literal["sent", "error"] = "sent" if isinstance(error, Exception) else "error"
            reply = Reply(self.address.node, number, status, 0, _own_key() if returns else "")
            self._send_to(to, reply, pack_error(reply, text, pickle_exception(error), self.settings.max_message_bytes))

    def _send_to(self, to: Address, reply: Reply, frame: Buffer) -> None:
        self._book.setdefault(to.node, to)  # a port may come from a node that this one has never heard of
        try:
            if to.node in self._down:
                raise PeerGone
            self._send(to, frame)
        except PeerGone as gone:
            self.message_returned(reply.by, f"{to.node}/port {reply.call}", str(self._why_gone(to, gone)))

    # -- messages that nobody could take (Host, Kept) ----------------------------------

    def return_message(self, message: Call | Reply, to_whom: str, why: str) -> None:
        """Tell the actor that sent it, where that wants to know."""
        if message.by:
            dest = f"{self.address.node}/{to_whom}"
            self._tell(self._book[message.sender], "undelivered", message.by, dest, why)

    def message_returned(self, key: str, dest: str, error: str) -> None:
        """A message of this actor's came back; of the empty key's, that was nobody's."""
        if (sender := self._actors.get(key)) is not None:
            sender.take_back(UndeliverableMessageEnvelope(sender.instance.actor_id, dest, error))

    def reply_error(self, to: str, call: int, text: str, error: BaseException) -> None:
        self._answer(
            to,
            pack_error(
                Reply(self.address.node, call, "error"), text, pickle_exception(error), self.settings.max_message_bytes
            ),
        )

    def reply_lost(self, to: str, call: int, error: SupervisionError) -> None:
        self._answer(
            to, pack_error(Reply(self.address.node, call, "lost"), str(error), None, self.settings.max_message_bytes)
        )

    def _answer(self, to: str, frame: Buffer) -> None:
        try:
            self._send(self._book[to], frame)
        except PeerGone:
            return  # who asked is gone, and with it the question

    # -- supervision (Host, Kept) -----------------------------------------------

    @property
    def patience(self) -> float:
        return self.settings.stop_timeout

    def actor_failed(self, instance: Instance, error: SupervisionError) -> None:
        """An actor here has failed: its owner is told."""
        spawner = self._book.get(spawner_of(instance.key))
        if spawner is None:
            logger.error("%s", error)  # an actor of the runtime
        else:
            self._tell(spawner, "failed", instance.key, instance.rank.rank, str(error))

    def actor_over(self, instance: Instance, error: SupervisionError) -> None:
        """An actor here is gone."""
        with self._replacing:
            if (heir := self._heirs.pop(instance.key, None)) is None:
                self._ended[instance.key] = str(error)
                if len(self._ended) > REMEMBERED:
                    self._ended.popitem(last=False)
                if self.is_leaving:
                    return  # its object is let go by `release_actors`, and the owner hears of the process
                self._actors.pop(instance.key, None)
        spawner = self._book.get(spawner_of(instance.key))
        if heir is not None:
            heir()
        elif spawner is not None and error.__cause__ is None:  # of one that failed the owner knows, and may heal it
            self._tell(spawner, "over", instance.key, instance.rank.rank)

    def charges_of(self, key: str) -> list[Charge]:
        return self.ledger.of(key)

    def owned_actor_failed(self, key: str, rank: int, report: str) -> None:
        if (found := self.ledger.fail(key, rank, name_cells(report))) is not None:
            self._supervise(*found)

    def owned_actor_over(self, key: str, rank: int) -> None:
        self.ledger.end(key, [rank])

    def _supervise(self, charge: Charge, failure: MeshFailure) -> None:
        """Whoever owns the mesh is told. An owner that has ended takes its meshes with it, and needs not know."""
        if charge.on_failure is not None and charge.on_failure(failure):
            return
        if not charge.owner:
            self.on_fault(charge, failure)
        elif (hosted := self._actors.get(charge.owner)) is not None:
            hosted.supervise(charge, failure)

    def _lose_spawner(self, node: str) -> None:
        """Nobody answers any more for what that node has spawned here."""
        for key in self.actors():
            if spawner_of(key) == node:
                self._on_message(Stop(self.address.node, 0, key, _why_abandoned(key)), ())
        for message, _ in self._early.give_up(node):
            self._refuse_unknown(message, _why_abandoned(message.actor))

    # -- processes that are started again --------------------------------------------

    def begin_again(self, address: Address, life: int) -> None:
        """A node that had ended is there again, or soon: create again what is this node's business there."""
        if self.note_reborn(address, life):
            self.create_again(reborn=[address])

    def note_reborn(self, address: Address, life: int) -> bool:
        """Clear what is known of the end of a node that is started again; False where that was known already."""
        node = address.node
        with self.noting:
            if life <= self._lives.get(node, 0):
                return False
            if node not in self._down:  # the news has overtaken that of its end
                self._note_down(ExitReport(node, 0, None, hint="it has ended, and was started again"))
            self._lives[node] = life
            self._book[node] = address
            self._early.expect(node, life * ACTORS_A_LIFE)
            del self._down[node]
            self._transport.remember(node)
            for listener in list(self.when_reborn):
                listener(node)
        return True

    def create_again(self, *, reborn: Sequence[Address], alive: Collection[str] = ()) -> list[tuple[str, Future[Any]]]:
        """Create all actors again that were spawned from here in these processes, and those that failed in living ones.

        For each of them its node, and a future that tells how it went.
        """
        begun = []
        for charge, ranks in self.ledger.heal_actors(reborn={address.node for address in reborn}, alive=alive):
            nodes = {rank: node for node, rank in charge.ranks.items()}
            begun += [(nodes[rank], future) for rank, future in zip(ranks, charge.again(ranks), strict=True)]
        with self._numbering:
            number = self._number - 1
        for address in reborn if number >= 0 else ():
            self._tell(address, "renewed", self.address.node, number)
        return begun

    def close_early(self, spawner: str, number: int) -> None:
        """Refuse what came for actors that this spawner had here before, and does not create again."""
        for message, _ in self._early.close(spawner, number):
            self._refuse_unknown(message, _unknown(message.actor, self.address.node))

    # -- calls under way (Kept) ----------------------------------------------------

    def make_running(self, instance: Instance, *, is_alone: bool) -> Running:
        def is_own(target: Target) -> bool:
            return is_alone and target.actor == instance.key and target.address.node == self.address.node

        watch = self._watch.wake if is_alone else _not_at_all
        return Running(is_own, describe=lambda: str(instance), later=self.later, watch=watch, is_alone=is_alone)

    def break_off(self, key: str, sender: str, call: int) -> None:
        if (hosted := self._actors.get(key)) is not None:
            hosted.break_off(sender, call)

    def where_is(self, key: str, sender: str, call: int) -> str:
        hosted = self._actors.get(key)
        if hosted is not None:
            return hosted.where(sender, call)
        return "gone" if key in self._ended else "not there yet"

    def follow(self, path: list[Step], key: str) -> None:
        hosted, last = self._actors.get(key), path[-1]
        if hosted is not None and (running := hosted.held_up_by(last.node, last.call)) is not None:
            self._watch.follow(path, key, running)

    def _send_probe(self, target: Target, path: list[Step]) -> None:
        self._tell(target.address, "probe", path, target.actor)

    def _who_runs(self) -> Iterator[tuple[str, Running]]:
        for key, hosted in list(self._actors.items()):
            if (running := hosted.running) is not None:
                yield key, running

    # -- watching ----------------------------------------------------------------

    def announce_down(self, report: ExitReport, to: Sequence[Address]) -> None:
        """Tell these nodes, and this one, that a node has ended."""
        frame = pack(Down(self.address.node, report), (), self.settings.max_message_bytes)
        self._on_down(Down(self.address.node, report), ())
        for peer in to:
            try:
                self._send(peer, frame)
            except PeerGone:
                continue

    def find_lost(self, targets: Sequence[Target]) -> int | None:
        """The first of these actors of a mesh that is lost, as far as that is known here."""
        failed = self.ledger.failed_nodes(targets[0].actor)
        if not failed and not self._down:
            return None
        nodes = enumerate(target.address.node for target in targets)
        return next((index for index, node in nodes if node in failed or node in self._down), None)

    def has_ended(self, address: Address) -> bool:
        """Whether a node is known to have ended, maybe with its whole run."""
        return address.node in self._down or address.url in self._of_ended_runs

    def report_of(self, node: str) -> ExitReport | None:
        """How a node ended, where it has."""
        return self._down.get(node)

    # -- receiving -----------------------------------------------------------------

    def _accept(self, frame: Buffer) -> None:
        try:
            message, body = unpack(frame)
            if not isinstance(message, Hello) and message.sender not in self._book:
                raise RefusedMessage(f"a {type(message).__name__} from {message.sender!r}, who has not said Hello")
            self._handlers[type(message)](message, body)
        except RefusedMessage as error:
            self._refuse(error)

    def _refuse(self, error: RefusedMessage) -> None:
        self.refused += 1
        kind = str(error)[:40]
        if kind not in self._logged and len(self._logged) < 100:
            self._logged.add(kind)
            logger.warning("node %s refused a message: %s", self.address.node, error)

    def _on_hello(self, hello: Hello, body: Body) -> None:
        if hello.run != self.run:
            raise RefusedMessage(f"a Hello of another run from {hello.sender.node!r}")
        node = hello.sender.node
        self._book[node] = hello.sender
        if node in self._lives or node in self._down:
            # The agent says so as well, but who answers now must not take it for the one that has ended.
            self.begin_again(hello.sender, hello.life)
        else:
            self._lives[node] = hello.life

    def _on_spawn(self, spawn: Spawn, body: Body) -> None:
        def make() -> Actor:
            cls, args, kwargs = pickling.loads(body, f"the class or an argument of actor {spawn.actor}")
            hosted.instance.class_name = f"{cls.__module__}.{cls.__qualname__}"
            return cls(*args, **kwargs)  # type: ignore[no-any-return]

        def constructed(error: SupervisionError | None) -> None:
            if error is None:
                self.reply(spawn.sender, spawn.call, None, "a spawn")
            else:
                self.reply_lost(spawn.sender, spawn.call, error)

        def begin() -> None:
            if spawn.on_main and self.run_on_main is not None:
                self.run_on_main(lambda: hosted.run(constructed))
            else:
                hosted.start(constructed)

        key = spawn.actor
        with self._replacing:
            before = self._actors.get(key)
            is_there = before is not None and not before.is_lost
            if not is_there:
                hosted = self._host(HostedActor, key, make, point_of(spawn.place), "", instance_of(spawn.creator))
                hosted.is_restored = spawn.again
                self._ended.pop(key, None)
                if before is not None:  # it is still at its `__cleanup__`; of those with one name one lives at a time
                    self._heirs[key] = begin
        if is_there:
            return constructed(None)  # its mesh was healed while it was being spawned
        for message, early in self._early.arrived(key):
            hosted.post(message, early)
        if before is None:
            begin()
        return None

    def _on_message(self, message: Call | Stop, body: Body) -> None:
        if isinstance(message, Call) and (port := message.reply_to) is not None:
            # From here on it is a question of the port's node, which this one may never have heard of.
            self._book.setdefault(port.node, port)
            message = msgspec.structs.replace(message, sender=port.node, reply_to=None)
        key = message.actor
        if (hosted := self._actors.get(key)) is not None:
            hosted.post(message, body)
        elif (why := self._ended.get(key)) is not None:
            self._refuse_unknown(message, why)
        elif spawner_of(key) in self._down:
            self._refuse_unknown(message, _why_abandoned(key))
        elif self._early.is_early(key):
            self._early.keep(key, message, body)
        else:
            self._refuse_unknown(message, _unknown(key, self.address.node))

    def _refuse_unknown(self, message: Call | Stop, why: str) -> None:
        if isinstance(message, Stop) and message.call and message.actor in self._ended:
            self.reply(message.sender, message.call, None, "a stop")  # stopping twice is no error
        elif message.call:
            self.reply_lost(message.sender, message.call, SupervisionError(why))
        elif isinstance(message, Call):
            self.return_message(message, message.actor, why)

    def _on_reply(self, reply: Reply, body: Body) -> None:
        found = self._calls.take(reply.call, reply.rank)
        if found is None:
            # A port that is closed. Or answered before: the node was declared down, and this reply was still under way.
            return self.return_message(reply, f"port {reply.call}", "nobody receives there any more")
        asker, index = found
        if reply.status == "ok":
            asker.answer(index, lambda: pickling.loads(body, "the result of an endpoint"))
        else:
            asker.refuse(index, rebuild_error(reply.status, body))
        return None

    def _on_down(self, down: Down, body: Body) -> None:
        self._note_down(down.report)

    def _note_down(self, report: ExitReport) -> None:
        node = report.node
        with self.noting:
            if 0 <= report.life < self._lives.get(node, 0):
                # It is there again, and has said so before this came. Who asked it before is told nevertheless.
                return self._fail_all(node, lambda: _loss(report))
            if node in self._down:
                return None
            self._down[node] = report
            self._transport.forget(node)
            self._fail_all(node, lambda: _loss(report))
            self._lose_spawner(node)
            for charge, failure in self.ledger.lose(node, str(report), stopped=bool(report.stopped)):
                self._supervise(charge, failure)
            for listener in list(self.when_down):
                listener(report)
        return None

    def _fail_all(self, node: str | None, error: Callable[[], BaseException]) -> None:
        for asker, index in self._calls.take_all(node):
            asker.refuse(index, error())


def _loss(report: ExitReport) -> SupervisionError:
    """What an ended node means to who asked it: a fault, or that it had been stopped on purpose."""
    return SupervisionError(str(report)) if report.stopped else ProcessDied(str(report), report)


def _unknown(key: str, node: str) -> str:
    return f"no actor {key!r} on node {node}: it was stopped, or never spawned"


def _own_key() -> str:
    """The user's actor that runs here, empty for a client and for actors of the runtime."""
    here = CURRENT.get()
    key = here.actor_instance.key if here is not None else ""
    return key if spawner_of(key) else ""


def _sender(targets: Sequence[Target]) -> str:
    """Who hears of a broadcast to these that comes back. Nobody of what the runtime says to its own."""
    return _own_key() if targets and spawner_of(targets[0].actor) else ""


def _why_abandoned(key: str) -> str:
    """Why an actor ends, or never comes: nobody answers for it any more."""
    return f"its owner has ended: {texts.owner_lost(spawner_of(key), name_of(key))}"


def _not_at_all() -> None:
    """Nobody looks after this."""


def _log_fault(charge: Charge, failure: MeshFailure) -> None:
    logger.error("%s", failure)
