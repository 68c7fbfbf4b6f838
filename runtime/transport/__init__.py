"""The transport interface between nodes, with three backends: `memory`, `unix`, and `gateway` between hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from meshbook.runtime.transport.io_loop import IoLoop
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address


class PeerGone(ConnectionError):
    """The peer was removed (`forget`); nothing can be sent there any more."""


class RunEnded(PeerGone):
    """The peer belongs to a run that has ended."""


Accept = Callable[[Buffer], None]


class Transport(Protocol):
    """An inbox with an address, and connections to other inboxes, on one I/O thread.

    Frames from one sender arrive in the order sent. `greeting` is sent first on every new connection. `send` and
    `send_soon` take no lock, so finalizers and signal handlers may call them. They queue the frame if the receiver is
    slow, and wait while a queue is over its high-water mark (never on an I/O thread).
    """

    address: Address
    greeting: Buffer
    loop: IoLoop
    accept: Accept  # gets each frame that arrives, on the I/O thread; must not wait

    def start(self) -> None:
        """Start the I/O thread and the receiving."""

    def send(self, to: Address, frame: Buffer) -> None:
        """Send a frame, from the calling thread if that does not block. Raises PeerGone after `forget` or `close`."""

    def send_soon(self, to: Address, frame: Buffer) -> None:
        """Send a frame on the I/O thread, together with others; in order with `send`."""

    def have_left(self, to: Address) -> bool:
        """Whether all frames that were sent to a peer have left this process; for any thread."""

    def forget(self, node: str) -> None:
        """Remove a peer: drop its queue, and raise PeerGone in all threads that send to it, until `remember`."""

    def remember(self, node: str, incarnation: int) -> None:
        """Connect again to a peer that was restarted at the same address. Does nothing for any other peer."""

    def hold(self, to: Address, last: Buffer, keep: Callable[[Buffer], Buffer]) -> None:
        """Send this frame to a peer and hold the later ones, each converted by `keep`, until `release`."""

    def release(self, to: Address, *, anew: bool, incarnation: int = 0) -> None:
        """Send the held frames. With `anew`, another process, of this incarnation, gets the greeting first."""

    def close(self) -> None:
        """Send the queued frames that peers accept at once, end the I/O thread, and release all resources."""
