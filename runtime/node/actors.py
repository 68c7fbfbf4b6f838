"""The actor registry of a node: the hosted actors, why others have ended, and messages for actors yet to be spawned.

All state belongs to the I/O thread; `find`, `names` and `is_served_here` are for any thread. A message goes to the
actor's queue, or its sender gets an error. A reference may arrive before the Spawn of its actor: then `EarlyMessages`
keeps the messages for it.
"""

from __future__ import annotations

import contextvars
import functools
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from meshbook.runtime import monarch_texts
from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import CURRENT, Instance, name_of, spawner_of
from meshbook.runtime.actor.failure import UndeliverableMessageEnvelope
from meshbook.runtime.errors import SupervisionError
from meshbook.runtime.geometry import SCALAR, Point
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.node.deadlock import DeadlockDetector, WaitStep
from meshbook.runtime.node.execution import CallPlace, Execution, RunningEndpoint, Spans
from meshbook.runtime.node.flow_control import is_counted, size_of
from meshbook.runtime.node.hosted_actor import HostedActor, sender_of
from meshbook.runtime.node.identity import instance_of, point_of
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.telemetry.spans import Row, is_recorded
from meshbook.runtime.threads import items_of, notify_all
from meshbook.runtime.traces import format_error
from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.frames import Body
from meshbook.runtime.wire.messages import Call, Place, Spawn, Stop

if TYPE_CHECKING:
    from meshbook.runtime.node.node import Node

logger = logging.getLogger(__name__)

REMEMBERED = 4096  # ended actors whose reason the node keeps
SLACK = 64  # how far spawns may arrive out of order, when threads of one spawner take numbers concurrently
Early = tuple[Call | Stop, Body]


class PendingReplacement(NamedTuple):
    """An actor that replaces one of the same name, and the function that starts it."""

    hosted: HostedActor
    begin: Callable[[], None]


class ActorRegistry:
    """The actors that a node hosts, by their keys."""

    def __init__(self, node: Node, routes: Routes, send_probe: Callable[[Target, list[WaitStep]], None]) -> None:
        self.when_ended: list[Callable[[Instance], None]] = []  # callbacks for an actor that has ended
        self._node = node
        self._routes = routes
        self._actors: dict[str, HostedActor] = {}
        self._replacements: dict[str, PendingReplacement] = {}  # each starts once the actor it replaces has ended
        self._ended: OrderedDict[str, str] = OrderedDict()  # reasons of ended actors; the oldest are dropped
        self.early = EarlyMessages()
        self._watch = DeadlockDetector(routes.own.node, self._executions, send_probe, node.loop.call_later)

    # -- hosted actors ---------------------------------------------------------------

    def host(
        self, name: str, make: Callable[[], Actor], *, rank: Point | None = None, class_name: str = ""
    ) -> HostedActor:
        """Host an actor that this process creates itself; the caller runs it (`start` or `run`)."""
        hosted = self._actors[name] = self._make(HostedActor, name, make, rank, class_name)
        return hosted

    def host_inline(self, name: str, actor: Actor) -> None:
        """Host an actor of the runtime whose endpoints run on the receiving thread and never wait."""
        hosted = self._make(InlineActor, name, lambda: actor, None, type(actor).__qualname__)
        self._actors[name] = hosted
        # In a separate context, because `construct` sets the current actor.
        contextvars.copy_context().run(hosted.construct, lambda error: None)

    def names(self) -> list[str]:
        """Return the keys of the actors here, without those that run on the receiving thread."""
        return [key for key, hosted in items_of(self._actors) if not isinstance(hosted, InlineActor)]

    def find(self, key: str) -> HostedActor | None:
        """Return the actor with this key, or None if it is not here."""
        return self._actors.get(key)

    def move(self, place: Any, at: Place, keys: Collection[str]) -> None:
        """Set the new place of the process, and the new rank of these actors in their mesh."""
        for hosted in list(self._actors.values()):
            hosted.instance.spec = place
        for key in keys:
            if (moved := self._actors.get(key)) is not None:
                moved.instance.rank = point_of(at)

    def is_served_here(self, key: str) -> bool:
        """Whether this actor cannot handle a message while the calling thread waits."""
        hosted = self._actors.get(key)
        return hosted is not None and hosted.is_served_here()

    def release_all(self) -> None:
        """Drop the actors' objects once all actors have ended, so that their finalizers run."""
        for hosted in list(self._actors.values()):  # a copy: an actor may be spawned while finalizers run
            hosted.release()

    def _make(
        self,
        kind: type[HostedActor],
        key: str,
        make: Callable[[], Actor],
        rank: Point | None,
        class_name: str,
        creator: Instance | None = None,
    ) -> HostedActor:
        place = rank or SCALAR.point(0)
        instance = Instance(key, class_name or "actor", place, self._node, self._node.place, creator)
        return kind(self._node, instance, make)

    # -- messages ----------------------------------------------------------------------

    def spawn(self, spawn: Spawn, body: Body) -> None:
        """Host an actor that another node (or this one) spawns here, and reply once it is constructed."""

        def make() -> Actor:
            cls, args, kwargs = pickling.loads(body, f"the class or an argument of actor {spawn.actor}")
            hosted.set_class(f"{cls.__module__}.{cls.__qualname__}")
            return cls(*args, **kwargs)  # type: ignore[no-any-return]

        def constructed(error: SupervisionError | None) -> None:
            if error is None:
                self._node.replies.reply(spawn.sender, spawn.call, None, "a spawn")
            else:
                self._node.replies.reply_lost(spawn.sender, spawn.call, error)

        def begin() -> None:
            if spawn.on_main and self._node.run_on_main is not None:
                self._node.run_on_main(lambda: hosted.run(constructed))
            else:
                hosted.start(constructed)

        key = spawn.actor
        before = self._actors.get(key)
        if before is not None and not before.is_lost:
            return constructed(None)  # its mesh was healed while it was being spawned
        hosted = self._make(HostedActor, key, make, point_of(spawn.place), "", instance_of(spawn.creator))
        hosted.is_restored = spawn.is_restored
        self._ended.pop(key, None)
        self._actors[key] = hosted
        for message, early in self.early.arrived(key):
            hosted.post(message, early)
        if before is None:
            begin()
        else:  # the old actor is still in its `__cleanup__`; only one actor of a name exists at a time
            self._replacements[key] = PendingReplacement(hosted, begin)
        return None

    def post(self, message: Call | Stop, body: Body) -> None:
        """Queue a message for its actor, keep it for an actor yet to be spawned, or refuse it."""
        if isinstance(message, Call) and (port := message.reply_to) is not None:
            # From here on the call counts as sent by the node of the port, which may be unknown here.
            self._routes.learn(port)
            message = msgspec.structs.replace(message, sender=port.node, reply_to=None, via=message.sender)
        key = message.actor
        if (hosted := self._actors.get(key)) is not None:
            hosted.post(message, body)
        elif why := self._why_not(key):
            self._refuse(message, body, why)
        else:
            self.early.keep(key, message, body)
            self._routes.meet(spawner_of(key))  # the spawner may have ended before this process began

    def _why_not(self, key: str) -> str:
        """Return why an actor is not here, or "" if it may still be spawned."""
        is_abandoned = spawner_of(key) in self._routes.down
        if (why := self._ended.get(key)) is not None:
            return f"{why}\n{_why_abandoned(key)}" if is_abandoned and _why_abandoned(key) not in why else why
        if is_abandoned:
            return _why_abandoned(key)
        return "" if self.early.is_early(key) else self._unknown(key)

    def _refuse(self, message: Call | Stop, body: Body, why: str) -> None:
        if isinstance(message, Call) and is_counted(message.actor):
            self._node.flow.grant(sender_of(message), message.actor, 1, size_of(body))
        if isinstance(message, Stop) and message.call and message.actor in self._ended:
            self._node.replies.reply(message.sender, message.call, None, "a stop")  # stopping twice is no error
        elif message.call:
            self._node.replies.reply_lost(message.sender, message.call, SupervisionError(why))
        elif isinstance(message, Call):
            self._node.calls.return_message(message, message.actor, why)

    def _unknown(self, key: str) -> str:
        return f"no actor {key!r} on node {self._routes.own.node}: it was stopped, or never spawned"

    # -- ends -----------------------------------------------------------------------------

    def actor_ended(self, instance: Instance, error: SupervisionError, confirm: Callable[[], object]) -> None:
        """Remove an ended actor, then call `confirm`. May be called on any thread."""
        notify_all(self.when_ended, instance)
        self._node.loop.call_soon(functools.partial(self._remove, instance, error, confirm))

    def _remove(self, instance: Instance, error: SupervisionError, confirm: Callable[[], object]) -> None:
        # A replacement that was abandoned before it started is still in `_replacements` and ends when it starts.
        key = instance.key
        replacement, hosted = self._replacements.get(key), self._actors.get(key)
        if replacement is not None and replacement.hosted.instance is not instance:
            del self._replacements[key]
            replacement.begin()
        elif replacement is None and hosted is not None and hosted.instance is instance:
            self._ended[key] = str(error)
            if len(self._ended) > REMEMBERED:
                # Not the reason of an actor that would otherwise count as yet to be spawned.
                oldest = next((key for key in self._ended if not self.early.is_early(key)), None)
                if oldest is not None:
                    del self._ended[oldest]
            if not self._node.is_leaving:  # else `release_all` drops the object, and the owner gets the Down
                del self._actors[key]
                self._node.supervision.actor_gone(instance, error)
        # Else it was abandoned in its constructor, which has returned now; another actor may have its name.
        confirm()

    def lose_spawner(self, node: str) -> None:
        """Stop the actors that an ended node has spawned here."""
        for key in self.names():
            if spawner_of(key) == node:
                self.post(Stop(self._routes.own.node, 0, key, _why_abandoned(key)), ())
        self._refuse_all(self.early.drop_spawner(node), _why_abandoned)

    def close_early(self, spawner: str, number: int) -> None:
        """Refuse messages for earlier actors of this spawner that it does not create again."""
        self._refuse_all(self.early.close(spawner, number), self._unknown)

    def _refuse_all(self, waiting: Iterable[Early], why: Callable[[str], str]) -> None:
        for message, body in waiting:
            self._refuse(message, body, why(message.actor))

    def message_returned(self, key: str, dest: str, error: str) -> None:
        """Pass a returned message to the actor that sent it; the key is empty if no actor did."""
        if (sender := self._actors.get(key)) is not None:
            sender.take_back(UndeliverableMessageEnvelope(sender.instance.actor_id, dest, error))

    def report_taken(self, key: str, sender: str) -> None:
        """Report to a node that waits for room what was taken from the queue of this actor."""
        if (hosted := self._actors.get(key)) is not None:
            hosted.queue.report(sender)

    # -- calls in progress -----------------------------------------------------------------

    def make_execution(self, instance: Instance, *, is_alone: bool) -> Execution:
        """Return an execution, which tracks the message that an actor handles."""

        def is_own(target: Target) -> bool:
            return is_alone and target.actor == instance.key and target.address.node == self._routes.own.node

        return Execution(
            is_own,
            describe=lambda: str(instance),
            call_later=self._node.loop.call_later,
            watch=self._watch.wake if is_alone else lambda: None,  # overlapping calls do not start it
            is_alone=is_alone,
            spans=Spans.of(self._node.recorder, instance),
        )

    def under_way(self) -> Iterator[Row]:
        """Return the spans of the messages that the actors here handle."""
        for hosted in list(self._actors.values()):
            yield from hosted.under_way()

    def loads(self) -> Iterator[tuple[str, int, str]]:
        """Yield name, number of queued messages and running endpoint of the users' actors, and of the cell runner."""
        for key, hosted in items_of(self._actors):
            if spawner_of(key) and is_recorded(hosted.instance.class_name):
                yield hosted.load()

    def running(self) -> Iterator[tuple[RunningEndpoint, Execution]]:
        """Yield the endpoints of the users' actors that run."""
        for _, hosted in items_of(self._actors):
            if hosted.is_of_user:
                yield from hosted.running()

    def interrupt(self) -> list[str]:
        """Cancel the endpoints of the users' actors that run; return their names, as `trainer.step()`."""
        users = [hosted for _, hosted in items_of(self._actors) if hosted.is_of_user]
        return [name for hosted in users for name in hosted.interrupt()]

    def cancel(self, key: str, sender: str, call: int) -> None:
        """Cancel this call: interrupt it, or drop it before it begins."""
        if (hosted := self._actors.get(key)) is not None:
            hosted.cancel(sender, call)

    def where_is(self, key: str, sender: str, call: int) -> CallPlace:
        """Return where this call is: in the queue, or at a line of the user's code."""
        hosted = self._actors.get(key)
        if hosted is not None:
            return hosted.where(sender, call)
        return CallPlace("stopped" if key in self._ended else "not spawned yet")

    def follow(self, path: list[WaitStep], key: str) -> None:
        """Forward a probe of the deadlock watch: the last actor of the path waits for this one."""
        hosted, last = self._actors.get(key), path[-1]
        if hosted is not None and (execution := hosted.held_up_by(last.node, last.call)) is not None:
            self._watch.follow(path, key, execution)

    def _executions(self) -> Iterator[tuple[str, Execution]]:
        for key, hosted in items_of(self._actors):
            if (execution := hosted.execution) is not None:
                yield key, execution


class InlineActor(HostedActor):
    """An actor of the runtime without a thread: its endpoints run on the I/O thread and must not wait."""

    def post(self, message: Call | Stop, body: Body) -> None:
        if isinstance(message, Call):
            self.queue.count_out((message, body))
            token = CURRENT.set(self.context_of(message, None))
            try:
                self.returned(message, self.begin(message, body))
            except Exception as error:
                self.raised(message, error)
            finally:
                CURRENT.reset(token)

    def raised(self, call: Call, error: Exception) -> None:
        if call.call:
            super().raised(call, error)
        else:  # one failed message must not end the actor
            logger.error("%s.%s() failed\n%s", self.instance.name, call.endpoint, format_error(error))


class EarlyMessages:
    """Messages for actors that are not spawned yet, by actor.

    Messages of one sender arrive in order, and each spawner numbers its actors. So an actor with a higher number than
    all Spawns received from its spawner is yet to arrive. Flow control bounds the messages: the sender waits.
    """

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}  # by spawner
        self._waiting: dict[str, list[Early]] = {}

    def is_early(self, key: str) -> bool:
        """Whether this actor, which is unknown here, may still be spawned."""
        return _number(key) > self._highest.get(spawner_of(key), -1) - SLACK

    def keep(self, key: str, message: Call | Stop, body: Body) -> None:
        self._waiting.setdefault(key, []).append((message, body))

    def arrived(self, key: str) -> list[Early]:
        """Register a spawned actor; remove and return the messages for it."""
        if (spawner := spawner_of(key)) and (number := _number(key)) > self._highest.get(spawner, -1):
            self._highest[spawner] = number
        return self._waiting.pop(key, [])

    def expect(self, spawner: str, first: int) -> None:
        """Register a restarted spawner, which numbers its actors from `first`: no lower one will be spawned."""
        self._highest[spawner] = first + SLACK - 1

    def close(self, spawner: str, number: int) -> list[Early]:
        """Remove and return the messages for actors up to `number`: the spawner will not spawn those any more."""
        self._highest[spawner] = max(self._highest.get(spawner, -1), number + SLACK)
        return self._take([key for key in list(self._waiting) if spawner_of(key) == spawner and _number(key) <= number])

    def drop_spawner(self, spawner: str) -> list[Early]:
        """Remove and return all messages for actors of this spawner, which has ended."""
        return self._take([key for key in list(self._waiting) if spawner_of(key) == spawner])

    def _take(self, keys: list[str]) -> list[Early]:
        return [early for key in keys for early in self._waiting.pop(key, ())]


def _number(key: str) -> int:
    """Return 7 for `trainer-7@controller`, and less than any number for a key without one."""
    number = key.rpartition("@")[0].rpartition("-")[2]
    return int(number) if number.isdecimal() else -SLACK - 1


def _why_abandoned(key: str) -> str:
    """Return the reason for an actor that ends, or is never spawned, because its owner has ended."""
    return f"its owner has ended: {monarch_texts.owner_lost(spawner_of(key), name_of(key))}"
