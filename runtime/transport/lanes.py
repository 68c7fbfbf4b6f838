"""The connections between a gateway and the processes of its host, for the I/O thread only.

lanes     from a process here to one incarnation of a node of another host
inboxes   to the nodes here
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from meshbook.runtime.transport.home import decode_lane_request
from meshbook.runtime.transport.io_loop import IoLoop
from meshbook.runtime.transport.link import Link, node_of
from meshbook.runtime.transport.unix import Listener, PeerConnection, Reader, StreamSocket
from meshbook.runtime.wire.frames import Buffer

if TYPE_CHECKING:
    from meshbook.runtime.transport.gateway import Gateway

Key = tuple[str, str]  # a host, and a stream to a node of it


class LaneConnection(NamedTuple):
    """One connection of a process here."""

    key: Key
    reader: Reader


class Lanes:
    """The lanes of one gateway. A lane is read only while its stream has room: its senders wait meanwhile."""

    def __init__(self, loop: IoLoop, path: Path, most_bytes: int, gateway: Gateway) -> None:
        self._loop = loop
        self._most_bytes = most_bytes
        self._gateway = gateway
        self._lanes: dict[Key, list[LaneConnection]] = {}
        self._listener = Listener(loop, path, self._open_reader)
        loop.close_in_child.append(self._listener.close_in_child)

    def start(self) -> None:
        """Start to accept connections."""
        self._listener.start()

    def _open_reader(self, connected: StreamSocket) -> Reader:
        reader = Reader(self._loop, connected, self._most_bytes, lambda frame: self._open(reader, frame))
        return reader

    def _open(self, reader: Reader, frame: Buffer) -> None:
        """Open the lane that the first frame of a connection requests."""
        try:
            request = decode_lane_request(frame)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            self._gateway.refuse_lane(f"not a lane request: {error}")
            return reader.close()
        if (key := self._gateway.open_lane(request)) is None:
            return reader.close()
        lane = LaneConnection(key, reader)
        self._lanes.setdefault(key, []).append(lane)
        reader.when_closed.append(lambda: self._forget(lane))
        reader.accept = lambda frame: self._forward(lane, frame)
        return None

    def _forward(self, lane: LaneConnection, frame: Buffer) -> None:
        if not self._gateway.forward(lane.key, frame):
            lane.reader.pause()

    def _forget(self, lane: LaneConnection) -> None:
        if lane in (lanes := self._lanes.get(lane.key, [])):
            lanes.remove(lane)

    def resume(self, key: Key) -> None:
        """Read the lanes of this stream again, as it has room."""
        for lane in self._lanes.get(key, ()):
            lane.reader.resume()

    def close(self, key: Key) -> None:
        """Close the lanes of this stream."""
        for lane in list(self._lanes.pop(key, ())):
            lane.reader.close()

    def close_all_to(self, host: str) -> None:
        """Close all lanes to this host."""
        for key in [key for key in self._lanes if key[0] == host]:
            self.close(key)

    def end(self) -> None:
        """Close all connections and stop listening."""
        self._listener.close()


class Inboxes:
    """The connections to the nodes here, each opened for the first frame."""

    def __init__(self, loop: IoLoop, path_of: Callable[[str], Path], has_room: Callable[[str], None]) -> None:
        self._loop = loop
        self._path_of = path_of
        self._has_room = has_room  # called with a node that accepts frames again
        self._inboxes: dict[str, PeerConnection] = {}

    def hand_over(self, link: Link, stream: str) -> None:
        """Send a node the frames that this link has received for it, until its queue fills."""
        while (frame := link.first(stream)) is not None:
            inbox = self._inbox(node_of(stream))
            if inbox.queue:
                return
            inbox.send(frame)
            link.took(stream)

    def close(self, node: str) -> None:
        """Drop the connection and the queued frames of a process that has ended."""
        if (inbox := self._inboxes.pop(node, None)) is not None:
            inbox.abandon()

    def end(self) -> None:
        """Close all connections."""
        for node in list(self._inboxes):
            self.close(node)

    def _inbox(self, node: str) -> PeerConnection:
        if (inbox := self._inboxes.get(node)) is None:
            path = str(self._path_of(node))
            inbox = self._inboxes[node] = PeerConnection(self._loop, node, path, limit=0)
            inbox.on_drained = lambda: self._has_room(node)
        return inbox
