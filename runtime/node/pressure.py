"""Back-pressure: who sends to an actor with a full queue waits until there is room, on the thread that sends.

A waiting thread leads the reception like one that waits for an answer, so Ctrl-C works, the actor's messages break it
off, and the watch over deadlocks sees whom it waits for. It waits on an event loop, too: what is sent from there
without waiting would pile up somewhere else. Only the thread that receives sends in spite of a full queue.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from meshbook.runtime.actor.context import name_of
from meshbook.runtime.actor.future import Future, Helper
from meshbook.runtime.errors import CallCancelled, CallTimeout, QueueFull
from meshbook.runtime.node.calls import Target
from meshbook.runtime.node.clock import Later
from meshbook.runtime.node.credits import Outstanding, Queue, Window, is_counted
from meshbook.runtime.node.deadlock import FOR_ROOM
from meshbook.runtime.node.reception import Reception
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.transport import PeerGone
from meshbook.runtime.wire.frames import Body, pack
from meshbook.runtime.wire.messages import Credit

logger = logging.getLogger(__name__)

LONG = 10.0  # seconds of waiting for room after which the log says so
REMEDY = (
    "Send less at once, wait for answers in between, or raise MESHBOOK_QUEUE_MESSAGES or MESHBOOK_QUEUE_BYTES where "
    "the run starts."
)


class Pressure:
    """The room in the queues that this node sends to. `serves_here` says whether this thread serves an actor here."""

    def __init__(
        self,
        routes: Routes,
        reception: Reception,
        window: Window,
        *,
        limit: int,
        later: Later,
        serves_here: Callable[[str], bool],
    ) -> None:
        self.window = window
        self._routes = routes
        self._reception = reception
        self._limit = limit
        self._later = later
        self._serves_here = serves_here
        self._outstanding: Outstanding[Future[None]] = Outstanding(window)
        self.spend = self._outstanding.spend
        self._complained: set[Queue] = set()  # waits that the log has told of

    # -- sending --------------------------------------------------------------------

    def find_room(self, target: Target, endpoint: str, size: int, deadline: float | None = None) -> None:
        """Count a message in that is about to be sent and that `spend` has refused, once there is room for it.

        CallTimeout where there is none before the deadline, QueueFull where only this thread could make some, and
        DeadlockError where those that could wait for it in turn.
        """
        if self._reception.is_led_here:
            self._outstanding.overspend((target.address.node, target.actor), size)
        else:
            self._wait(target, endpoint, size, deadline)

    def take_back(self, target: Target, size: int) -> None:
        """A message that was counted in was not sent."""
        if is_counted(target.actor):
            _wake(self._outstanding.give_back((target.address.node, target.actor), 1, size))

    def _wait(self, target: Target, endpoint: str, size: int, deadline: float | None) -> None:
        queue = target.address.node, target.actor
        if target.address.node == self._routes.own.node and self._serves_here(target.actor):
            raise QueueFull(
                f"the queue of {name_of(target.actor)} is full: {self._most} are in it, and this thread, which sends "
                f"{endpoint}(), is the one that takes them out. {REMEDY}"
            )
        while not self._outstanding.spend(queue, size, room := self._ask_for_room(target, endpoint)):
            self._later(LONG, functools.partial(self._complain, target, endpoint, room))
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                room.wait_here(left)
            except TimeoutError:
                raise CallTimeout(
                    f"{name_of(target.actor)}.{endpoint}() could not be sent to {target.address.node} in time: the "
                    f"queue there is full, with {self._most}"
                ) from None
            finally:
                self._outstanding.leave(queue, room)

    def _ask_for_room(self, target: Target, endpoint: str) -> Future[None]:
        """What is settled once there may be room."""
        room: Future[None] = Future.pending()
        room.asked(_Wait(target, endpoint, self._reception, room), None)
        return room

    @property
    def _most(self) -> str:
        return f"{self.window.messages:,} messages or {self.window.size:,} bytes of one process"

    def _complain(self, target: Target, endpoint: str, room: Future[None]) -> None:
        queue = target.address.node, target.actor
        if not room.done() and queue not in self._complained:
            self._complained.add(queue)
            logger.warning(
                "a thread has waited for %g s to send %s.%s() to %s, where the queue is full, with %s. %s",
                *(LONG, name_of(target.actor), endpoint, target.address.node, self._most, REMEDY),
            )

    # -- receiving --------------------------------------------------------------------

    def grant(self, sender: str, actor: str, messages: int, size: int) -> None:
        """Tell a node that there is room again in the queue of an actor here."""
        if (to := self._routes.find(sender)) is not None:
            try:
                self._routes.send(to, pack(Credit(self._routes.own.node, actor, messages, size), (), self._limit))
            except PeerGone:
                return  # nobody waits there any more

    def on_credit(self, credit: Credit, body: Body) -> None:
        """There is room again in the queue of an actor elsewhere."""
        _wake(self._outstanding.give_back((credit.sender, credit.actor), credit.messages, credit.size))

    # -- ends -------------------------------------------------------------------------

    def forget(self, node: str) -> None:
        """A node has ended: whoever waits to send there hears of it by sending."""
        _wake(self._outstanding.forget(node))

    def close(self) -> None:
        """This node has ended: the same."""
        _wake(self._outstanding.close())


class _Wait:
    """What a thread asks for that waits for room: the `Inquiry` of its future."""

    def __init__(self, target: Target, endpoint: str, helper: Helper, room: Future[None]) -> None:
        self._owing = (target, endpoint, FOR_ROOM)
        self._room = room
        self.helper = helper

    def owing(self, index: int | None) -> list[Any]:
        return [self._owing]

    def cancel(self, index: int | None) -> bool:
        self._room.fail(CallCancelled(f"{self._owing[1]}() was not sent: the wait for room was cancelled"))
        return True


def _wake(waiting: Iterable[Future[None]]) -> None:
    for room in waiting:
        room.resolve(lambda: None)
