"""Another host as seen by the gateway: the link, its current connection, and how long the host has been silent.

Only silence while this host listened counts.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator

import zmq

from meshbook.runtime.clock import monotonic
from meshbook.runtime.transport.gateway_connections import DialledConnection, GatewayConnection, Received
from meshbook.runtime.transport.link import (
    Bye,
    Link,
    LinkAttach,
    LinkAttached,
    LinkMessage,
    Ping,
    Refused,
    StreamAck,
    StreamPart,
)
from meshbook.runtime.transport.window import MissingPiece
from meshbook.runtime.wire.frames import Buffer

# Heartbeats within the grace time. Two bounds decide on it, with the default of 1.7 s (`Settings.host_timeout`):
# - A host that is gone is found at latest 1.7 s and one look (`gateway.LOOK_SECONDS`) after its last message, and so
#   within 2 s, whatever its launcher notices: Ray takes 15 s, Slurm 27 s, and TCP minutes.
# - A host that lives is not found lost by accident. A beat each 0.24 s, of which six in a row may be late, outlasts the
#   retransmission of lost packets (0.2 s, then 0.4 s) and a new connection (after 0.6 s of silence, `BROKEN`). The
#   agent's I/O thread sends them, which runs no user code. Time that the receiver did not run does not count (`STALL`).
BEATS = 7
BROKEN = 0.35  # fraction of the grace time: after such a silence the gateway replaces the connection
FIRST_TRY = 0.2  # seconds until an attempt to connect is replaced by another one
NEXT_TRY = 1.5  # factor for the time of the next attempt: the other host may be busy
LONGEST_TRY = 5.0
REMEMBERED = 100  # former connections to remember


class HostLink:
    """The link to another host, for the I/O thread only. `dial` makes connections; without it the other host does."""

    def __init__(
        self,
        here: str,
        host: str,
        grace: float,
        dial: Callable[[], DialledConnection] | None,
        watch: Callable[[zmq.Socket[bytes]], None],
        unwatch: Callable[[int], None],
    ) -> None:
        self.host = host
        self.link = Link()
        self._here = here
        self._grace = grace
        self._watch = watch
        self._unwatch = unwatch
        self._dial = dial
        self._dialled: DialledConnection | None = None
        self._connection: GatewayConnection | None = None
        self._former: collections.deque[bytes | None] = collections.deque(maxlen=REMEMBERED)
        self._attempt = 0
        self._again_at = 0.0
        self._try = FIRST_TRY
        self._heartbeats = HeartbeatState(monotonic())
        self.is_leaving = False  # the host has sent Bye

    # -- the connection ------------------------------------------------------------------

    def is_on(self, connection: GatewayConnection) -> bool:
        """Whether this connection carries the link now."""
        return self._connection is not None and self._connection.routing_id == connection.routing_id

    def was_on(self, connection: GatewayConnection) -> bool:
        """Whether this connection carried the link recently; some of its messages may be read only now."""
        return connection.routing_id in self._former

    def read(self) -> Iterator[Received]:
        """Yield the messages received on the connection that was dialled from here."""
        if self._dialled is not None:
            yield from self._dialled.read()

    def look_after(self, now: float) -> float:
        """Keep the link alive, and return for how long the other host has been silent."""
        silence = self._heartbeats.silence(now)
        is_broken = not self.link.is_attached or silence > self._grace * BROKEN
        if self._dial is not None and now >= self._again_at and is_broken:
            self._redial(now)
        if self._heartbeats.is_due(now, self._grace / BEATS):
            self._send(Ping())
        if self.link.is_attached and (news := self.link.news()) is not None:
            self._send(news)
        return silence

    def _redial(self, now: float) -> None:
        assert self._dial is not None
        self.disconnect()
        self._attempt += 1
        self._dialled = self._dial()
        self._watch(self._dialled.socket)
        self._connection = self._dialled.connection
        self._send(LinkAttach(self._here, self._attempt, self.link.positions()))
        self._again_at = now + self._try
        self._try = min(self._try * NEXT_TRY, LONGEST_TRY)

    def disconnect(self, *, linger: bool = False) -> None:
        """Close the connection; with `linger` the last messages are still sent."""
        self._lose()
        if self._dialled is not None:
            self._unwatch(int(self._dialled.socket.fd))
            self._dialled.close(linger=linger)
            self._dialled = None

    def refuse(self, why: str) -> None:
        """Send Refused to a host that this one has removed, and close the connection."""
        self._send(Refused(why))
        self.disconnect(linger=True)

    def send_bye(self, why: str) -> None:
        """Send Bye; the other host replies with ByeReply, unless the connection breaks."""
        self._send(Bye(why))

    # -- receiving -------------------------------------------------------------------------

    def note_message(self) -> None:
        """Reset the silence: the host has sent something."""
        self._heartbeats.note_message(monotonic())

    def take(self, received: Received) -> set[str]:
        """Handle a message and return the streams that now have room or a frame."""
        self.note_message()
        message = received.message
        if isinstance(message, StreamPart):
            return self._take_part(message, received.data)
        if isinstance(message, StreamAck):
            self.link.acknowledge(message.positions)
            for stream in message.positions:
                self.flush(stream)
            return set(message.positions)
        if isinstance(message, LinkAttach) and message.attempt > self._attempt:
            self._lose()
            self._attempt, self._connection = message.attempt, received.connection
            self._send(LinkAttached(message.attempt, self.link.positions()))
            return self._attach(message.received)
        if isinstance(message, LinkAttached) and message.attempt == self._attempt and not self.link.is_attached:
            self._try = FIRST_TRY
            return self._attach(message.received)
        return set()

    def _take_part(self, part: StreamPart, data: Buffer) -> set[str]:
        try:
            self.link.take_in(part, data)
        except MissingPiece:
            self._lose()
            return set()
        return {part.stream}

    def _attach(self, received: dict[str, int]) -> set[str]:
        self.link.attach(received)
        if (news := self.link.news(anyway=True)) is not None:
            self._send(news)  # the acknowledgement on the previous connection may be lost
        for part, data in self.link.all_due():
            self._send(part, data)
        return self.link.outflows()

    # -- sending ---------------------------------------------------------------------------

    def put(self, stream: str, frame: Buffer) -> None:
        """Send a frame to the other host."""
        self.link.put(stream, frame)
        self.flush(stream)

    def flush(self, stream: str) -> None:
        """Send the pieces of this stream that are due."""
        for part, data in self.link.due(stream):
            self._send(part, data)

    def _send(self, message: LinkMessage, data: Buffer = b"") -> None:
        if self._connection is not None and not self._connection.send(message, data):
            self._lose()

    def _lose(self) -> None:
        """Drop the connection. The dialling side makes another one, soon or when it receives nothing."""
        self.link.detach()
        if self._connection is not None:
            self._former.append(self._connection.routing_id)
            self._connection = None


STALL = 0.5  # seconds: a longer pause between two checks means that this process did not run


class HeartbeatState:
    """The silence of one host, and the heartbeats to it.

    A process that was stopped or got no CPU time has received nothing meanwhile. That time is not the peer's silence.
    """

    def __init__(self, now: float) -> None:
        self._heard = now
        self._looked = now
        self._beaten = now

    def note_message(self, now: float) -> None:
        """Reset the silence: the host has sent something."""
        self._heard = now

    def silence(self, now: float) -> float:
        """Return the seconds since the last message. Call this often: a pause over `STALL` does not count."""
        if (pause := now - self._looked) > STALL:
            self._heard = min(now, self._heard + pause)
        self._looked = now
        return now - self._heard

    def is_due(self, now: float, interval: float) -> bool:
        """Whether a heartbeat is due; if so, counts it as sent."""
        if now - self._beaten < interval:
            return False
        self._beaten = now
        return True
