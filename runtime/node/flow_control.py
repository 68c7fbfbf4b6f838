"""Flow control by credits: limits how much one node may have waiting in the queue of an actor.

The sending node counts what it has sent to each queue (`SentCredits`). The receiving node counts what was taken out
(`OwedCredits`) and reports it in batches of half a window (`Credit`). So a sender overestimates by less than half a
window, and always gets a credit when there is room. A thread that sends to a full queue waits. An I/O thread never
waits.

**No counter has a lock.** A check and the addition after it contain no call, so Python switches to no other thread
between them and runs no finalizer there (CPython checks for those at calls and backward jumps).

**A thread may be interrupted at any statement**, by a Ctrl-C that ends the send or the report, or by a signal handler
or finalizer that waits for another thread meanwhile. So no thread waits for a thread that is in the middle of one:

- A message is reserved first, and counts as sent once it has left (`SentMessages.leave`). Other threads wait for the
  room of a reserved message only for `MOMENT`, which is longer than any send takes. Then it is written off.
- A report is subtracted from what was taken only once it has been sent. A sender that waits for long requests it
  (`FlowControl.report`), and the I/O thread answers.
- Where an interrupt leaves it open whether a message was sent or counted, it does not count. So room is never lost. The
  counts are right again when the queue is empty.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Generic, TypeVar

from meshbook.runtime.actor.context import name_of
from meshbook.runtime.actor.future import Future
from meshbook.runtime.clock import monotonic
from meshbook.runtime.errors import CallCancelled, CallTimeout, QueueFull
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.node.deadlock import FOR_ROOM
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.telemetry.output import TELEMETRY
from meshbook.runtime.threads import may_block
from meshbook.runtime.transport import PeerGone
from meshbook.runtime.transport.io_loop import Callback, CallLater, Timer
from meshbook.runtime.wire.frames import Body, pack
from meshbook.runtime.wire.messages import Credit

logger = logging.getLogger(__name__)

W = TypeVar("W")
Queue = tuple[str, str]  # the node of an actor, and its key
LONG = 10.0  # seconds of waiting for room before a warning
ASK_SECONDS = 0.5  # between two requests of a thread that waits for room
MOMENT = 0.05  # seconds; a message that is reserved for longer may never be sent
REMEDY = (
    "Send less at once, wait for answers in between, or raise MESHBOOK_QUEUE_MESSAGES or MESHBOOK_QUEUE_BYTES where "
    "the run starts."
)


class QueueLimits:
    """The limits of one node in one queue: at least one message. A message may be sent while neither is reached."""

    __slots__ = ("half_messages", "half_size", "messages", "size")

    def __init__(self, messages: int, size: int) -> None:
        self.messages = max(1, messages)
        self.size = max(1, size)  # bytes of bodies
        self.half_messages = self.messages / 2
        self.half_size = self.size / 2


class SentMessages(Generic[W]):
    """The messages and bytes sent to one queue and not yet taken out, and the waiters for room."""

    __slots__ = ("is_dropped", "messages", "reserved", "reserved_size", "size", "waiting")

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0
        self.reserved = 0  # messages among these that may not have been sent
        self.reserved_size = 0
        self.waiting: list[W] = []
        self.is_dropped = False  # this counter is no longer in use for the queue

    def leave(self, size: int) -> None:
        """Note that a reserved message has been sent."""
        self.reserved -= 1
        self.reserved_size -= size


class SentCredits(Generic[W]):
    """The sending side of a node. `spend` is for any thread, all else for the I/O thread. O(queues) at a node's end."""

    def __init__(self, window: QueueLimits) -> None:
        self._most: float = window.messages
        self._largest: float = window.size
        self._sent: dict[Queue, SentMessages[W]] = {}

    def __len__(self) -> int:
        return len(self._sent)

    def spend(self, queue: Queue, size: int, waiter: W | None = None) -> SentMessages[W] | None:
        """Reserve a message if there is room, and return the counter, whose `leave` is to be called once it is sent.

        Otherwise return None, and add the waiter, which `give_back` returns once there may be room.
        """
        while True:
            sent = self._sent.get(queue)
            if sent is None:
                sent = self._sent.setdefault(queue, SentMessages())
            most, largest = self._most, self._largest
            # No call from here to the additions.
            if sent.is_dropped:
                continue
            if sent.messages < most and sent.size < largest:
                # In this order: an interrupt in between may not leave a message that counts as sent.
                sent.reserved += 1
                sent.reserved_size += size
                sent.messages += 1
                sent.size += size
                return sent
            if waiter is None:
                return None
            # Add the waiter, then check again: otherwise a `give_back` in between would be missed.
            sent.waiting.append(waiter)
            if not sent.is_dropped and (sent.messages >= self._most or sent.size >= self._largest):
                return None
            _remove(sent.waiting, waiter)

    def find_each(self, queues: Sequence[Queue]) -> tuple[list[int], list[SentMessages[W]]]:
        """Return the indices and the counters of the queues that have room for a message. Nothing is counted."""
        find, most, largest = self._sent.get, self._most, self._largest
        indices: list[int] = []
        found: list[SentMessages[W]] = []
        for index, queue in enumerate(queues):
            sent = find(queue)
            if sent is None:
                sent = self._sent.setdefault(queue, SentMessages())
            if sent.messages < most and sent.size < largest:
                indices.append(index)
                found.append(sent)
        return indices, found

    def overspend(self, queue: Queue, size: int) -> SentMessages[W]:
        """Reserve a message without room, for a thread that must not wait; see `spend`."""
        while True:
            sent = self._sent.get(queue) or self._sent.setdefault(queue, SentMessages())
            if sent.is_dropped:
                continue
            sent.reserved += 1
            sent.reserved_size += size
            sent.messages += 1
            sent.size += size
            return sent

    def is_reserved(self, queue: Queue) -> bool:
        """Whether a queue has room, unless messages are sent that are reserved."""
        sent = self._sent.get(queue)
        return sent is None or self._has_room(sent)

    def write_off(self, queue: Queue) -> list[W]:
        """Give back the room of reserved messages: their threads were interrupted, or are about to send them.

        Returns the waiters to wake.
        """
        sent = self._sent.get(queue)
        if sent is None:
            return []
        reserved, size = sent.reserved, sent.reserved_size
        # If a thread sends its message after all, `leave` makes this number negative: the message counts then.
        sent.reserved -= reserved
        sent.reserved_size -= size
        return self.give_back(queue, reserved, size)

    def _has_room(self, sent: SentMessages[W]) -> bool:
        return sent.messages - sent.reserved < self._most and sent.size - sent.reserved_size < self._largest

    def give_back(self, queue: Queue, messages: int, size: int) -> list[W]:
        """Count messages out; return the waiters to wake. Reports of an earlier incarnation have no effect."""
        sent = self._sent.get(queue)
        if sent is None:
            return []
        sent.messages -= messages
        sent.size -= size
        if sent.messages <= 0:
            sent.messages = 0
            sent.size = 0
            sent.is_dropped = True  # the queue is empty; the next message gets a new counter
        elif sent.size < 0:
            sent.size = 0
        if sent.is_dropped:
            self._sent.pop(queue, None)
        return _take_all(sent.waiting) if sent.is_dropped or self._has_room(sent) else []

    def forget(self, nodes: Collection[str]) -> list[W]:
        """Drop the queues of nodes that have ended; return the waiters."""
        woken: list[W] = []
        for queue in [queue for queue in self._sent.copy() if queue[0] in nodes]:
            if (sent := self._sent.pop(queue, None)) is not None:
                sent.is_dropped = True
                woken += _take_all(sent.waiting)
        return woken

    def close(self) -> list[W]:
        """Remove the limits, since nothing is sent any more; return the waiters."""
        self._most = self._largest = math.inf
        return [waiter for sent in list(self._sent.values()) for waiter in _take_all(sent.waiting)]

    def leave(self, queue: Queue, waiter: W) -> None:
        """Forget a waiter."""
        if (sent := self._sent.get(queue)) is not None:
            _remove(sent.waiting, waiter)


def _take_all(waiting: list[W]) -> list[W]:
    taken = []
    while waiting:
        try:
            taken.append(waiting.pop(0))
        except IndexError:  # the waiting thread has just removed it
            break
    return taken


def _remove(waiting: list[W], waiter: W) -> None:
    try:
        waiting.remove(waiter)
    except ValueError:
        return  # it was already woken


class _Taken:
    """The messages and bytes of one sender that were taken from one queue and not yet reported."""

    __slots__ = ("messages", "size")

    def __init__(self) -> None:
        self.messages = 0
        self.size = 0


class OwedCredits:
    """The receiving side of one queue."""

    def __init__(self, window: QueueLimits) -> None:
        self._half_messages, self._half_size = window.half_messages, window.half_size
        self._taken: dict[str, _Taken] = {}  # by sending node

    def take(self, sender: str, size: int) -> bool:
        """Count a message out; return whether a batch is complete, which is then to be reported to the sender."""
        taken = self._taken.get(sender)
        if taken is None:
            taken = self._taken.setdefault(sender, _Taken())
        # No call from here on.
        taken.messages += 1
        taken.size += size
        return taken.messages >= self._half_messages or taken.size >= self._half_size

    def due(self, sender: str) -> tuple[int, int] | None:
        """Return the messages and bytes that were taken and are not reported to this sender; None if there are none."""
        taken = self._taken.get(sender)
        return (taken.messages, taken.size) if taken is not None and taken.messages else None

    def reported(self, sender: str, messages: int, size: int) -> None:
        """Subtract what was reported. If two threads have reported the same, the sender has a little more room."""
        taken = self._taken[sender]
        # No call from here on. If there are fewer, another thread has subtracted the same.
        if taken.messages >= messages:
            taken.messages -= messages
            taken.size = taken.size - size if taken.messages else 0

    def close(self) -> list[str]:
        """Make each message due at once from now on; return the senders."""
        self._half_messages = self._half_size = 0
        return list(self._taken)


def is_counted(actor: str) -> bool:
    """Whether flow control counts the messages of an actor: a spawned one, or the one that receives output.

    The other actors of the runtime never lag behind, and messages to them must not wait.
    """
    return "@" in actor or actor == TELEMETRY


def size_of(body: Body) -> int:
    """Return the bytes of a body, the same on both sides."""
    if len(body) == 1:
        return len(body[0])  # a pickle stream
    return sum(memoryview(part).nbytes for part in body)


class FlowControl:
    """The room in the queues that this node sends to, and the credits for its own."""

    def __init__(
        self,
        routes: Routes,
        window: QueueLimits,
        *,
        limit: int,
        call_later: CallLater,
        serves_here: Callable[[str], bool],
        ask: Callable[[Target], None],
    ) -> None:
        self.window = window
        self._routes = routes
        self._limit = limit
        self._call_later = call_later
        self._serves_here = serves_here  # whether the calling thread takes messages from this actor's queue
        self._ask = ask  # asks the node of this actor to report what was taken from its queue
        self._outstanding: SentCredits[Future[None]] = SentCredits(window)
        self.spend, self.find_each = self._outstanding.spend, self._outstanding.find_each
        self._warned: set[Queue] = set()  # queues with a logged warning
        self._waiting: set[int] = set()  # threads that wait for room

    # -- sending --------------------------------------------------------------------

    def find_room(
        self, target: Target, endpoint: str, size: int, deadline: float | None = None
    ) -> SentMessages[Future[None]]:
        """Wait for room for a message that `spend` has refused, and reserve it as `spend` does.

        The thread waits even if it runs an event loop; otherwise its messages would pile up elsewhere. Raises
        CallTimeout if there is no room before the deadline, QueueFull if only this thread could make room, and
        DeadlockError if the actors wait for each other.
        """
        thread = threading.get_ident()
        # A finalizer or signal handler that interrupts such a wait does not wait itself: they would pile up on the
        # stack while the thread makes no progress.
        if not may_block() or thread in self._waiting:
            return self._outstanding.overspend((target.address.node, target.actor), size)
        try:
            self._waiting.add(thread)
            return self._wait(target, endpoint, size, deadline)
        finally:
            self._waiting.discard(thread)

    def take_back(self, target: Target, size: int) -> None:
        """Count out a message that its receiver will not take."""
        if is_counted(target.actor):
            _wake(self._outstanding.give_back((target.address.node, target.actor), 1, size))

    def _wait(self, target: Target, endpoint: str, size: int, deadline: float | None) -> SentMessages[Future[None]]:
        queue = target.address.node, target.actor
        if target.address.node == self._routes.own.node and self._serves_here(target.actor):
            raise QueueFull(
                f"cannot send {endpoint}(): the queue of {name_of(target.actor)} is full ({self._limits}), and only "
                f"the sending thread takes messages out of it. {REMEDY}"
            )
        long_wait = _LongWait(self._call_later, lambda: self._ask(target), lambda: self._warn_once(target, endpoint))
        reserved_until = 0.0  # when the room is written off that other messages have reserved
        try:
            long_wait.begin()
            while True:
                room = self._ask_for_room(target, endpoint)
                if (sent := self._outstanding.spend(queue, size, room)) is not None:
                    return sent
                try:
                    left = None if deadline is None else max(0.0, deadline - monotonic())
                    if not self._outstanding.is_reserved(queue):
                        reserved_until = 0.0
                    elif not reserved_until:
                        reserved_until = monotonic() + MOMENT
                    elif reserved_until <= monotonic():
                        _wake(self._outstanding.write_off(queue))
                        reserved_until = 0.0
                        continue
                    room.wait_here(min(MOMENT, math.inf if left is None else left) if reserved_until else left)
                except TimeoutError:
                    if deadline is not None and deadline <= monotonic():
                        raise CallTimeout(
                            f"timed out sending {name_of(target.actor)}.{endpoint}() to {target.address.node}: the "
                            f"queue there is full ({self._limits})"
                        ) from None
                finally:
                    self._outstanding.leave(queue, room)
        finally:
            long_wait.end()

    def _ask_for_room(self, target: Target, endpoint: str) -> Future[None]:
        """Return a future that resolves once there may be room."""
        room: Future[None] = Future.pending()
        room.set_pending_call(_Wait(target, endpoint, room), None)
        return room

    @property
    def _limits(self) -> str:
        return f"{self.window.messages:,} messages or {self.window.size:,} bytes of one process"

    def _warn_once(self, target: Target, endpoint: str) -> None:
        queue = target.address.node, target.actor
        if queue not in self._warned:
            self._warned.add(queue)
            logger.warning(
                "waiting for more than %g s to send %s.%s() to %s: the queue there is full (%s). %s",
                *(LONG, name_of(target.actor), endpoint, target.address.node, self._limits, REMEDY),
            )

    # -- receiving --------------------------------------------------------------------

    def report(self, owed: OwedCredits, sender: str, actor: str) -> None:
        """Report to a node what was taken from the queue of an actor here, also if no batch is complete."""
        if (due := owed.due(sender)) is not None:
            self.grant(sender, actor, *due)
            owed.reported(sender, *due)  # only now: see above

    def grant(self, sender: str, actor: str, messages: int, size: int) -> None:
        """Send a node the credit for what was taken from the queue of an actor here."""
        if (to := self._routes.find(sender)) is not None:
            try:
                self._routes.send_soon(to, pack(Credit(self._routes.own.node, actor, messages, size), (), self._limit))
            except PeerGone:
                return  # no thread waits there any more

    def on_credit(self, credit: Credit, body: Body) -> None:
        """Count out the messages that were taken from the queue of an actor elsewhere."""
        _wake(self._outstanding.give_back((credit.sender, credit.actor), credit.messages, credit.size))

    # -- ends -------------------------------------------------------------------------

    def forget(self, nodes: Collection[str]) -> None:
        """Wake the threads that wait for room on ended nodes; they try to send and get the error."""
        _wake(self._outstanding.forget(nodes))

    def close(self) -> None:
        """Wake all threads that wait for room, as this node has ended."""
        _wake(self._outstanding.close())


class _LongWait:
    """Requests a report again and again while a thread waits for room, and warns once; on the I/O thread."""

    def __init__(self, call_later: CallLater, ask: Callback, warn: Callback) -> None:
        self._call_later = call_later
        self._ask = ask
        self._warn = warn
        self._is_over = False
        self._timers: list[Timer] = []

    def begin(self) -> None:
        self._timers.append(self._call_later(LONG, self._warn))
        self._timers.append(self._call_later(ASK_SECONDS, self._look))

    def _look(self) -> None:
        if not self._is_over:
            self._ask()
            self._timers[-1] = self._call_later(ASK_SECONDS, self._look)

    def end(self) -> None:
        self._is_over = True
        for timer in self._timers:
            timer.cancel()


class _Wait:
    """A thread's wait for room, as a pending call for the deadlock watch and for cancellation."""

    def __init__(self, target: Target, endpoint: str, room: Future[None]) -> None:
        self._owing = (target, endpoint, FOR_ROOM)
        self._room = room

    def owing(self, index: int | None) -> list[Any]:
        return [self._owing]

    def describe(self, index: int | None) -> str:
        return f"{self._owing[1]}()"

    def cancel(self, index: int | None) -> bool:
        self._room.fail(CallCancelled(f"{self._owing[1]}() was not sent: the wait for room was cancelled"))
        return True


def _wake(waiting: Iterable[Future[None]]) -> None:
    for room in waiting:
        room.resolve(lambda: None)
