"""Bytes from node to node: one narrow seam, two backends (`memory`, `zeromq`). Knows frames, not what is in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.messages import Address


class PeerGone(ConnectionError):
    """The peer was given up (`forget`); nothing can be sent there any more."""


class RunEnded(PeerGone):
    """The peer was of a run that has ended: whoever holds its address has it from there."""


class Transport(Protocol):
    """An inbox with an address, and the way to other inboxes.

    Frames from one sender arrive in the order sent. `greeting` is sent first on every new connection. Queues are
    bounded: `send` waits while the receiver is behind.
    """

    address: Address
    greeting: Buffer

    def send(self, to: Address, frame: Buffer) -> None:
        """Queue a frame; from any thread. Raises PeerGone after `forget`, or once this transport is closed."""

    def receive(self) -> Buffer | None:
        """The next frame, waiting for it; an empty one after `knock`, None once closed. For one thread at a time."""

    def receive_nowait(self) -> Buffer | None:
        """The same without waiting; an empty frame where there is none."""

    def knock(self) -> None:
        """Make `receive` return, from any thread and from a signal handler."""

    def forget(self, node: str) -> None:
        """Give a peer up: drop what is queued for it and wake who waits to send to it."""

    def remember(self, node: str, life: int) -> None:
        """Take a peer up again that was given up: it is there anew, at the same address. Nothing for any other.

        `life` counts those that it has had; what is sent from now on is for this one.
        """

    def hold(self, to: Address, last: Buffer, keep: Callable[[Buffer], Buffer]) -> None:
        """Send this frame to a peer, and keep what is sent there afterwards, as `keep` makes it, until `release`."""

    def release(self, to: Address, *, anew: bool) -> None:
        """Send what was kept for a peer. `anew`: another process is that peer now, to be greeted first."""

    def close(self) -> None:
        """Stop `receive`, deliver what was queued as far as peers take it at once, and release everything."""

    def terminate(self) -> None:
        """After `close`, once `receive` has returned None: wait until all of it has been released."""
