"""Who receives: one thread at a time, and best the one that waits for what comes.

A frame that one thread receives for another costs a hand-over between threads, 25 to 50 us, and a call has two of them:
to the actor's thread, and to the thread that waits for the answer. So a thread that has nothing to do but wait *leads*:
it receives in its own name, and handles whatever comes, for others too. A thread of our own, the attendant, receives
while no other does: it takes over when nobody has led for a moment, and sleeps while somebody leads.
"""

from __future__ import annotations

import inspect
import logging
import queue
import signal
import threading
from collections.abc import Callable

from meshbook.runtime.queues import get_within
from meshbook.runtime.transport import Transport
from meshbook.runtime.wire.frames import Buffer

logger = logging.getLogger(__name__)

MOMENT = 0.001  # seconds without a leader until the attendant steps in: the most that a frame has to wait for it
NOW, SOON = True, False  # what the attendant is woken for: to receive, or to watch whether others do

# Without the enumerations that Python wraps around it: they cost 5 us, twice in each call.
set_handler = inspect.unwrap(signal.signal)

Ready = Callable[[], bool]  # whether what a thread waits for is there


class Reception:
    """The receiving end of a node. `accept` handles one frame and never waits."""

    def __init__(self, transport: Transport, accept: Callable[[Buffer], None], crowded: Ready) -> None:
        self._transport = transport
        self._accept = accept
        self._crowded = crowded  # whether answers are better taken in by the bunch
        self._role = threading.Lock()  # held by whoever leads; guards the transport's inbox
        self._role.acquire()  # nobody receives before `start`
        self._leader = 0  # the thread that leads
        self._leads = 0  # how often somebody began to; so the attendant sees whether anything moves
        self._next: Ready | None = None  # what the last thread waits for that would have led, had the role been free
        self._awaited: Ready | None = None  # the same of the last one who could not have led
        self._asleep = False
        self._alarm: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._closed = False
        self.messages = self.bytes = 0  # that came; of whoever leads
        self._attendant = threading.Thread(target=self._attend, name="meshbook receiver", daemon=True)
        # A debugger that stops all threads must not make this process look dead.
        self._attendant.pydev_do_not_trace = True  # type: ignore[attr-defined]

    def start(self) -> None:
        """Begin to receive."""
        self._attendant.start()

    def join(self) -> None:
        """Wait until the closed transport has been read to its end; not for who is on the way to it himself."""
        if self._attendant.ident is None:  # never started: nobody else reads it
            while self._transport.receive() is not None:
                pass
        elif self._attendant.is_alive() and threading.get_ident() not in (self._leader, self._attendant.ident):
            self._attendant.join()

    # -- for threads that wait ----------------------------------------------

    def lead(self, ready: Ready) -> None:
        """Receive on the calling thread until `ready`; at once over where another thread receives already.

        The caller waits afterwards by its own means, whatever `ready` says then. A Ctrl-C is raised from here.
        """
        if not ready() and self._may_lead(ready):
            if threading.current_thread() is threading.main_thread():
                self._lead_on_main_thread(ready)
            elif self._role.acquire(blocking=False):
                self._receive(ready)

    def lead_idle(self, ready: Ready) -> None:
        """The same for a thread that nobody waits for: it gives the role up to one that is served meanwhile."""
        if not ready() and self._may_lead(ready) and self._role.acquire(blocking=False):
            self._receive(ready, idle=True)

    def attend(self, ready: Ready) -> None:
        """Somebody waits for `ready` who cannot lead (on an event loop, or for a limited time): receive for him."""
        self._awaited = ready
        if not self._role.locked():
            self._alarm.put(NOW)

    def poke(self) -> None:
        """Something became ready without a frame: a leader that waits for it, blocked in the transport, must look."""
        if self._leader not in (0, threading.get_ident()):
            self._transport.knock()

    @property
    def is_led_here(self) -> bool:
        """Whether the calling thread is the one that receives: what it waits for, nobody would take in."""
        return self._leader == threading.get_ident()

    # -- leading ---------------------------------------------------------------

    def _may_lead(self, ready: Ready) -> bool:
        if self._role.locked():
            self._next = ready
            return False
        return True

    def _lead_on_main_thread(self, ready: Ready) -> None:
        # A KeyboardInterrupt between a frame's arrival and its end would lose it, and whoever waits for it. So Ctrl-C
        # only knocks, and is raised when no frame is in hand. Set up before the role is taken: nothing leaks then.
        came: list[int] = []

        def note(number: int, frame: object) -> None:
            came.append(number)
            self._transport.knock()

        before = set_handler(signal.SIGINT, note)
        try:
            if self._role.acquire(blocking=False):
                self._receive(lambda: bool(came) or ready())
        finally:
            set_handler(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)

    def _receive(self, ready: Ready, *, idle: bool = False) -> None:
        """Receive and handle until `ready`. The role is ours at the beginning, and free at the end."""
        self._leads += 1
        # First say who leads, then look: what becomes ready in between either is seen, or knocks.
        self._leader = threading.get_ident()
        try:
            while not (ready() or self._closed or (idle and self._may_rest())):
                self._handle(self._transport.receive())
            while self._crowded() and not self._closed and self._handle(self._transport.receive_nowait()):
                pass
        finally:
            self._leader = 0
            self._role.release()
            self._pass_on()

    def _handle(self, frame: Buffer | None) -> bool:
        """Whether it was a frame, and not a knock or the end."""
        if frame is None:
            self._closed = True
        if not frame:
            return False
        self.messages += 1
        self.bytes += len(frame)
        try:
            self._accept(frame)
        except Exception:
            # A fault of ours in one message must not make the whole process deaf.
            logger.exception("a message could not be handled")
        return True

    def _may_rest(self) -> bool:
        """Whether somebody else is going to lead: whoever would have led runs now, and waits again soon."""
        if self._next is None:
            # One thread of this process pours out calls and does not wait for answers yet. Taking them in one by one
            # would take the interpreter's lock from it each time.
            return self._crowded()
        return self._is_next_served()

    def _is_next_served(self) -> bool:
        if self._next is None or not self._next():
            return False
        self._next = None
        return True

    def _pass_on(self) -> None:
        if self._awaited is not None and self._awaited():
            self._awaited = None
        if self._closed or self._awaited is not None or (self._next is not None and not self._is_next_served()):
            self._next = None
            self._alarm.put(NOW)
        elif self._asleep:
            self._asleep = False
            self._alarm.put(SOON)

    # -- the attendant -----------------------------------------------------------

    def _attend(self) -> None:
        self._receive(_never, idle=True)
        while not self._closed:
            self._stand_by()
            while not self._alarm.empty():
                self._alarm.get()  # we come
            if self._role.acquire(blocking=False):
                self._receive(_never, idle=True)

    def _stand_by(self) -> None:
        """Return when somebody asks for the attendant, or nobody has led for a moment."""
        leads = -1
        while not self._closed:
            try:
                if get_within(self._alarm, MOMENT):
                    return
            except queue.Empty:
                pass
            if leads != self._leads:
                leads = self._leads
            elif not self._role.locked():
                return
            else:
                self._sleep(leads)

    def _sleep(self, leads: int) -> None:
        """The same thread has led for a whole moment: it waits for the network, and wakes us when it goes on."""
        self._asleep = True
        # First say that we sleep, then look once more: a leader that left in between is seen, or rings.
        if leads == self._leads and self._role.locked() and self._alarm.get():
            self._alarm.put(NOW)
        self._asleep = False


def _never() -> bool:
    return False
