"""A transport whose link to all others can be made slow, or cut, for a time: for tests of what runs on it.

Nothing is lost by it and no order changes: what is held leaves when the time is over, as after a short trouble of a
network. While nothing is disturbed each call goes straight to the transport inside.
"""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Callable

from meshbook.runtime.transport import PeerGone, Transport
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address

Send = Callable[[Address, Buffer], None]
Receive = Callable[[], Buffer | None]
Held = tuple[float, Address, Buffer]  # when it is to leave, where to, what


class DisturbedTransport:
    """The `Transport` around another one. `slow` and `cut` begin at once and end by themselves."""

    # Those of the transport inside, but for the time of a disturbance: a call costs nothing more while there is none.
    send: Send
    receive: Receive
    receive_nowait: Receive
    knock: Callable[[], None]

    def __init__(self, inside: Transport, limit: int = 10_000) -> None:
        self.address = inside.address
        self._inside = inside
        self._limit = limit  # frames that may be held before a sender has to wait
        self._changed = threading.Condition()  # guards everything below; entered again by a signal handler that knocks
        self._held: collections.deque[Held] = collections.deque()
        self._slow_until = self._cut_until = 0.0
        self._latency = 0.0
        self._was_knocked = False
        self._pump: threading.Thread | None = None  # lets go what is held; while there is one, all that is sent is held
        self._pass_through()

    @property
    def greeting(self) -> Buffer:
        return self._inside.greeting

    @greeting.setter
    def greeting(self, frame: Buffer) -> None:
        self._inside.greeting = frame

    # -- what disturbs -------------------------------------------------------

    def slow(self, seconds: float, latency: float) -> None:
        """For so long let each frame leave `latency` seconds late."""
        with self._changed:
            self._latency, self._slow_until = latency, time.monotonic() + seconds
            self._hold()

    def cut(self, seconds: float) -> None:
        """For so long let nothing leave, and nothing come in."""
        with self._changed:
            self._cut_until = time.monotonic() + seconds
            self._hold()

    def mend(self) -> None:
        """End what is left of a disturbance; returns once all that was held has left."""
        with self._changed:
            self._slow_until = self._cut_until = 0.0
            self._held = collections.deque((0.0, to, frame) for _, to, frame in self._held)
            self._changed.notify_all()
            pump = self._pump
        if pump is not None:
            pump.join()

    def _hold(self) -> None:
        if self._pump is None:
            self._pump = threading.Thread(target=self._let_go, name="meshbook disturbed link", daemon=True)
            self.send, self.receive = self._send, self._receive
            self.receive_nowait, self.knock = self._receive_nowait, self._knock
            self._pump.start()
            self._inside.knock()  # who receives from inside comes back, and then to us
        self._changed.notify_all()

    def _pass_through(self) -> None:
        self._pump = None
        self.send, self.receive = self._inside.send, self._inside.receive
        self.receive_nowait, self.knock = self._inside.receive_nowait, self._inside.knock

    # -- sending while there is one ------------------------------------------

    def _send(self, to: Address, frame: Buffer) -> None:
        with self._changed:
            while self._pump is not None and len(self._held) >= self._limit:
                self._changed.wait()
            if self._pump is not None:
                self._held.append((self._leaving_time(), to, frame))
                self._changed.notify_all()
                return
        self._inside.send(to, frame)  # it has ended meanwhile, and everything before this has left

    def _leaving_time(self) -> float:
        now = time.monotonic()
        due = now + self._latency if now < self._slow_until else now
        return max(due, self._held[-1][0]) if self._held else due  # nothing overtakes

    def _let_go(self) -> None:
        """Send what is held when its time has come, until nothing is held and nothing disturbs any more."""
        while (next_ := self._wait_for_next()) is not None:
            with contextlib.suppress(PeerGone):  # as what a socket has taken for a peer that then dies
                self._inside.send(*next_)

    def _wait_for_next(self) -> tuple[Address, Buffer] | None:
        with self._changed:
            while (wait := self._seconds_to_wait()) > 0:
                self._changed.wait(wait)
            if not self._held:
                self._pass_through()  # under the lock: who sends now comes after all that has left
                self._changed.notify_all()
                return None
            _, to, frame = self._held.popleft()
            self._changed.notify_all()
            return to, frame

    def _seconds_to_wait(self) -> float:
        until = self._cut_until
        until = max(until, self._held[0][0] if self._held else self._slow_until)
        return until - time.monotonic()

    # -- receiving while there is one ----------------------------------------

    def _receive(self) -> Buffer | None:
        return b"" if self._wait_while_cut() else self._inside.receive()

    def _receive_nowait(self) -> Buffer | None:
        return b"" if self._is_cut() else self._inside.receive_nowait()

    def _is_cut(self) -> bool:
        return time.monotonic() < self._cut_until

    def _wait_while_cut(self) -> bool:
        """Whether somebody knocked meanwhile."""
        with self._changed:
            while self._is_cut() and not self._was_knocked:
                self._changed.wait(self._cut_until - time.monotonic())
            was_knocked, self._was_knocked = self._was_knocked and self._is_cut(), False
        return was_knocked

    def _knock(self) -> None:
        with self._changed:
            self._was_knocked = True
            self._changed.notify_all()
        self._inside.knock()  # for one that is inside already

    # -- peers, and the end --------------------------------------------------

    def forget(self, node: str) -> None:
        with self._changed:
            self._held = collections.deque(held for held in self._held if held[1].node != node)
            self._changed.notify_all()
        self._inside.forget(node)

    def remember(self, node: str, life: int) -> None:
        self._inside.remember(node, life)

    def hold(self, to: Address, last: Buffer, keep: Callable[[Buffer], Buffer]) -> None:
        self.mend()
        self._inside.hold(to, last, keep)

    def release(self, to: Address, *, anew: bool) -> None:
        self._inside.release(to, anew=anew)

    def close(self) -> None:
        self.mend()
        self._inside.close()

    def terminate(self) -> None:
        self._inside.terminate()
