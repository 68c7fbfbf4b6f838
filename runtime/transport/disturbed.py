"""A transport for tests that can delay or cut all traffic for a time.

It loses no frame and keeps the order: held frames are sent when the time is over, as after a short network failure.
Outside a disturbance, each call goes directly to the inner transport.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from meshbook.runtime.clock import monotonic
from meshbook.runtime.threads import HighWaterMark
from meshbook.runtime.transport import Accept, PeerGone, Transport
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address


class _DelayedFrame(NamedTuple):
    due: float
    to: Address
    frame: Buffer


class DisturbedTransport:
    """A `Transport` around another one. `slow` and `cut` begin at once and end by themselves."""

    # The methods of the inner transport, except during a disturbance.
    send: Callable[[Address, Buffer], None]
    send_soon: Callable[[Address, Buffer], None]

    def __init__(self, inside: Transport, limit: int = 10_000) -> None:
        self.address = inside.address
        self.loop = inside.loop
        self._inside = inside
        self._accept: Accept = _ignore
        self._held: deque[_DelayedFrame] = deque()
        self._mark = HighWaterMark(self._held, limit)
        self._arrived: deque[Buffer] = deque()  # received while the link is cut
        self._slow_until = self._cut_until = 0.0
        self._latency = 0.0
        self._is_disturbed = False
        self.send, self.send_soon = inside.send, inside.send_soon

    @property
    def accept(self) -> Accept:
        return self._accept

    @accept.setter
    def accept(self, accept: Accept) -> None:
        self._accept = self._inside.accept = accept

    @property
    def greeting(self) -> Buffer:
        return self._inside.greeting

    @greeting.setter
    def greeting(self, frame: Buffer) -> None:
        self._inside.greeting = frame

    def start(self) -> None:
        self._inside.start()

    # -- disturbances --------------------------------------------------------

    def slow(self, seconds: float, latency: float) -> None:
        """Delay each sent frame by `latency` seconds, for `seconds`."""
        self._latency, self._slow_until = latency, monotonic() + seconds
        self.loop.run(self._disturb)

    def cut(self, seconds: float) -> None:
        """Hold all sent and received frames for `seconds`."""
        self._cut_until = monotonic() + seconds
        self.loop.run(self._disturb)

    def mend(self) -> None:
        """End a disturbance; returns once all held frames are sent."""
        self.loop.run(self._mend)

    def _mend(self) -> None:
        self._slow_until = self._cut_until = 0.0
        self._release()

    def _disturb(self) -> None:
        if not self._is_disturbed:
            self._is_disturbed = True
            self.send = self.send_soon = self._hold
            self._inside.accept = self._take
        self._release()

    # -- during a disturbance ---------------------------------------------------

    def _hold(self, to: Address, frame: Buffer) -> None:
        now = monotonic()
        due = now + self._latency if now < self._slow_until else now
        self._held.append(_DelayedFrame(due, to, frame))
        if not self._is_disturbed:  # the disturbance has ended meanwhile
            self.loop.run(self._release)
        self._mark.wait(lambda: not self._is_disturbed)

    def _take(self, frame: Buffer) -> None:
        if self._arrived or monotonic() < self._cut_until:
            self._arrived.append(frame)
        else:
            self._accept(frame)

    def _release(self) -> None:
        """Send the frames that are due; after the end of the disturbance, use the inner transport directly again."""
        now = monotonic()
        if now >= self._cut_until:
            while self._arrived:
                self._accept(self._arrived.popleft())
            while self._held and (self._held[0].due <= now or now >= self._slow_until + self._latency):
                held = self._held.popleft()
                with contextlib.suppress(PeerGone):  # lost, like frames in the socket of a peer that dies
                    self._inside.send(held.to, held.frame)
            self._mark.notify()
        if not self._held and now >= max(self._cut_until, self._slow_until):
            if self._is_disturbed:
                self.send, self.send_soon = self._inside.send, self._inside.send_soon
                self._inside.accept = self._accept
                self._is_disturbed = False
                self._mark.wake_all()
                self._release()  # send what another thread has added in between
            return
        first = self._held[0].due if self._held else self._slow_until
        self.loop.call_later(max(0.0, max(self._cut_until, first) - now), self._look)

    def _look(self) -> None:
        if self._is_disturbed:
            self._release()

    def have_left(self, to: Address) -> bool:
        return not self._held and self._inside.have_left(to)

    # -- peers and the end ---------------------------------------------------

    def forget(self, node: str) -> None:
        def drop() -> None:
            kept = [held for held in self._held if held.to.node != node]
            self._held.clear()
            self._held.extend(kept)
            self._mark.notify()

        self.loop.run(drop)
        self._inside.forget(node)

    def remember(self, node: str, incarnation: int) -> None:
        self._inside.remember(node, incarnation)

    def hold(self, to: Address, last: Buffer, keep: Callable[[Buffer], Buffer]) -> None:
        self.mend()
        self._inside.hold(to, last, keep)

    def release(self, to: Address, *, anew: bool, incarnation: int = 0) -> None:
        self._inside.release(to, anew=anew, incarnation=incarnation)

    def close(self) -> None:
        self.mend()
        self._inside.close()


def _ignore(frame: Buffer) -> None:
    return None
