"""The actors of a node: which live here, which have ended and why, and which are still to come.

A message goes to the actor's queue, or whoever sent it hears why there is none. What concerns actors and is no message
(a call that nobody wants any more, a probe after who waits for whom) finds its actor here as well.
"""

from __future__ import annotations

import contextvars
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import msgspec

from meshbook.runtime import texts
from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import Instance, name_of, spawner_of
from meshbook.runtime.actor.failure import UndeliverableMessageEnvelope
from meshbook.runtime.errors import SupervisionError
from meshbook.runtime.geometry import Point
from meshbook.runtime.node.backlog import sender_of
from meshbook.runtime.node.calls import Target
from meshbook.runtime.node.credits import is_counted, size_of
from meshbook.runtime.node.deadlock import Step, Watch
from meshbook.runtime.node.early import Early, EarlyMessages
from meshbook.runtime.node.hosting import Host, HostedActor
from meshbook.runtime.node.identity import NOWHERE, instance_of, point_of
from meshbook.runtime.node.inline import InlineActor
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.node.running import Running, Spans
from meshbook.runtime.node.telling import tell_all
from meshbook.runtime.snapshots import items_of
from meshbook.runtime.telemetry.spans import Row, is_recorded
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body
from meshbook.runtime.wire.messages import Address, Call, Place, Spawn, Stop

REMEMBERED = 4096  # actors that have ended, of which the node still knows why


class Home(Host, Protocol):
    """What the directory needs of its node."""

    address: Address
    place: Any
    run_on_main: Callable[[Callable[[], None]], None] | None
    is_leaving: bool
    when_over: list[Callable[[Instance], None]]

    def actor_gone(self, instance: Instance, error: SupervisionError) -> None: ...
    def send_probe(self, target: Target, path: list[Step]) -> None: ...


class Heir(NamedTuple):
    """An actor that is to replace one of its name, and what makes it begin."""

    hosted: HostedActor
    begin: Callable[[], None]


class Directory:
    """The actors that a node hosts, by their keys."""

    def __init__(self, home: Home, routes: Routes) -> None:
        self._home = home
        self._routes = routes
        self._actors: dict[str, HostedActor] = {}
        self._heirs: dict[str, Heir] = {}  # actors that begin once those which they replace are over
        # Guards _heirs, and who of two actors is meant by a key. Under it, a finalizer of the user's may send.
        self._replacing = threading.RLock()
        self._ended: OrderedDict[str, str] = OrderedDict()  # why actors are no more; the oldest are forgotten
        self.early = EarlyMessages()
        self._watch = Watch(home.address.node, self._who_runs, home.send_probe, home.later)

    # -- who lives here --------------------------------------------------------------

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
        return [key for key, hosted in items_of(self._actors) if not isinstance(hosted, InlineActor)]

    def find(self, key: str) -> HostedActor | None:
        """The actor of this key, if it lives here."""
        return self._actors.get(key)

    def move(self, place: Any, at: Place, keys: Collection[str]) -> None:
        """The process has this place now; the actors of these keys are at this point of their mesh."""
        for hosted in list(self._actors.values()):
            hosted.instance.birth = place
        for key in keys:
            if (moved := self._actors.get(key)) is not None:
                moved.instance.rank = point_of(at)

    def is_served_here(self, key: str) -> bool:
        """Whether the calling thread is one that takes messages from this actor's queue."""
        hosted = self._actors.get(key)
        return hosted is not None and hosted.is_served_here()

    def release_actors(self) -> None:
        """Let go of the actors' objects, once all have ended, so that their finalisers run."""
        for hosted in list(self._actors.values()):  # their finalisers take time, in which one more may be spawned here
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
        hosted = self._actors[key] = self._make(kind, key, make, rank, class_name, creator)
        return hosted

    def _make(
        self,
        kind: type[HostedActor],
        key: str,
        make: Callable[[], Actor],
        rank: Point | None,
        class_name: str,
        creator: Instance | None,
    ) -> HostedActor:
        place = rank or NOWHERE.point(0)
        return kind(
            self._home, Instance(key, class_name or "actor", place, self._home, self._home.place, creator), make
        )

    # -- messages ----------------------------------------------------------------------

    def spawn(self, spawn: Spawn, body: Body) -> None:
        """Host an actor that somebody spawns here, and answer once it is constructed."""

        def make() -> Actor:
            cls, args, kwargs = pickling.loads(body, f"the class or an argument of actor {spawn.actor}")
            hosted.instance.class_name = f"{cls.__module__}.{cls.__qualname__}"
            return cls(*args, **kwargs)  # type: ignore[no-any-return]

        def constructed(error: SupervisionError | None) -> None:
            if error is None:
                self._home.reply(spawn.sender, spawn.call, None, "a spawn")
            else:
                self._home.reply_lost(spawn.sender, spawn.call, error)

        def begin() -> None:
            if spawn.on_main and self._home.run_on_main is not None:
                self._home.run_on_main(lambda: hosted.run(constructed))
            else:
                hosted.start(constructed)

        key = spawn.actor
        with self._replacing:
            before = self._actors.get(key)
            is_there = before is not None and not before.is_lost
            if not is_there:
                hosted = self._make(HostedActor, key, make, point_of(spawn.place), "", instance_of(spawn.creator))
                hosted.is_restored = spawn.again
                self._ended.pop(key, None)
                for message, early in self.early.arrived(key):
                    hosted.post(message, early)
                self._actors[key] = hosted  # only now: what comes from here on comes after those
                if before is not None:  # it is still at its `__cleanup__`; of those with one name one lives at a time
                    self._heirs[key] = Heir(hosted, begin)
        if is_there:
            return constructed(None)  # its mesh was healed while it was being spawned
        if before is None:
            begin()
        return None

    def post(self, message: Call | Stop, body: Body) -> None:
        """Give a message to its actor, or keep it for one that is still to come, or refuse it."""
        if isinstance(message, Call) and (port := message.reply_to) is not None:
            # From here on it is a question of the port's node, which this one may never have heard of.
            self._routes.learn(port)
            message = msgspec.structs.replace(message, sender=port.node, reply_to=None, via=message.sender)
        if (hosted := self._actors.get(message.actor)) is not None:
            hosted.post(message, body)
        else:
            self._post_to_nobody(message, body)

    def _post_to_nobody(self, message: Call | Stop, body: Body) -> None:
        # A process sends to itself from any thread, and there its actors may come, and their spawners go, meanwhile.
        # Who does that under the lock either is seen here, or sees what is kept.
        key = message.actor
        with self._replacing:
            hosted = self._actors.get(key)
            why = "" if hosted is not None else self._why_not(key)
            if hosted is None and not why:
                self.early.keep(key, message, body)
        if hosted is not None:
            hosted.post(message, body)
        elif why:
            self._refuse(message, body, why)
        else:
            self._routes.meet(spawner_of(key))  # it may have ended before this process began

    def _why_not(self, key: str) -> str:
        """Why an actor is not here; nothing for one that is still to come."""
        if (why := self._ended.get(key)) is not None:
            return why
        if spawner_of(key) in self._routes.down:
            return _why_abandoned(key)
        return "" if self.early.is_early(key) else self._unknown(key)

    def _refuse(self, message: Call | Stop, body: Body, why: str) -> None:
        if isinstance(message, Call) and is_counted(message.actor):
            self._home.grant(sender_of(message), message.actor, 1, size_of(body))
        if isinstance(message, Stop) and message.call and message.actor in self._ended:
            self._home.reply(message.sender, message.call, None, "a stop")  # stopping twice is no error
        elif message.call:
            self._home.reply_lost(message.sender, message.call, SupervisionError(why))
        elif isinstance(message, Call):
            self._home.return_message(message, message.actor, why)

    def _unknown(self, key: str) -> str:
        return f"no actor {key!r} on node {self._home.address.node}: it was stopped, or never spawned"

    # -- ends -----------------------------------------------------------------------------

    def actor_over(self, instance: Instance, error: SupervisionError) -> None:
        """An actor here is gone. For one that was given up before its turn that is when its turn comes."""
        tell_all(self._home.when_over, instance)
        key = instance.key
        with self._replacing:
            if (heir := self._heirs.get(key)) is not None:
                if heir.hosted.instance is instance:
                    return
                del self._heirs[key]
            elif (hosted := self._actors.get(key)) is None or hosted.instance is not instance:
                return  # it was given up in its constructor, which has returned now; another may bear its name
            else:
                self._ended[key] = str(error)
                self._forget_oldest()
                if self._home.is_leaving:
                    return  # its object is let go by `release_actors`, and the owner hears of the process
                del self._actors[key]
        if heir is not None:
            heir.begin()
        else:
            self._home.actor_gone(instance, error)

    def _forget_oldest(self) -> None:
        """Keep no more than the last ends; but those of actors that would be taken for ones still to come."""
        if len(self._ended) > REMEMBERED:
            oldest = next((key for key in self._ended if not self.early.is_early(key)), None)
            if oldest is not None:
                del self._ended[oldest]

    def lose_spawner(self, node: str) -> None:
        """Nobody answers any more for what that node has spawned here."""
        for key in self.actors():
            if spawner_of(key) == node:
                self.post(Stop(self._home.address.node, 0, key, _why_abandoned(key)), ())
        with self._replacing:
            waiting = self.early.give_up(node)
        self._refuse_all(waiting, _why_abandoned)

    def close_early(self, spawner: str, number: int) -> None:
        """Refuse what came for actors that this spawner had here before, and does not create again."""
        with self._replacing:
            waiting = self.early.close(spawner, number)
        self._refuse_all(waiting, self._unknown)

    def _refuse_all(self, waiting: Iterable[Early], why: Callable[[str], str]) -> None:
        for message, body in waiting:
            self._refuse(message, body, why(message.actor))

    def message_returned(self, key: str, dest: str, error: str) -> None:
        """A message of this actor's came back; of the empty key's, that was nobody's."""
        if (sender := self._actors.get(key)) is not None:
            sender.take_back(UndeliverableMessageEnvelope(sender.instance.actor_id, dest, error))

    # -- calls under way -------------------------------------------------------------------

    def make_running(self, instance: Instance, *, is_alone: bool) -> Running:
        def is_own(target: Target) -> bool:
            return is_alone and target.actor == instance.key and target.address.node == self._home.address.node

        watch = self._watch.wake if is_alone else _not_at_all
        return Running(
            is_own,
            describe=lambda: str(instance),
            later=self._home.later,
            watch=watch,
            is_alone=is_alone,
            spans=Spans.of(self._home.recorder, instance),
        )

    def under_way(self) -> Iterator[Row]:
        """Spans of what the actors here are at."""
        for hosted in list(self._actors.values()):
            yield from hosted.under_way()

    def loads(self) -> Iterator[tuple[str, int, str]]:
        """How much the users' actors here have to do, and what runs cells: name, messages that wait, endpoint."""
        for key, hosted in items_of(self._actors):
            if spawner_of(key) and is_recorded(hosted.instance.class_name):
                yield hosted.load()

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

    def _who_runs(self) -> Iterator[tuple[str, Running]]:
        for key, hosted in items_of(self._actors):
            if (running := hosted.running) is not None:
                yield key, running


def _why_abandoned(key: str) -> str:
    """Why an actor ends, or never comes: nobody answers for it any more."""
    return f"its owner has ended: {texts.owner_lost(spawner_of(key), name_of(key))}"


def _not_at_all() -> None:
    """Nobody looks after this."""
