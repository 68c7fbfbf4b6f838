"""The ways between a gateway and the processes of its host: lanes, by which they send, and inboxes, where they get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq

from meshbook.runtime.transport.entrance import BATCH, Context
from meshbook.runtime.transport.home import IPC
from meshbook.runtime.transport.link import Link
from meshbook.runtime.transport.streams import node_of
from meshbook.runtime.wire.frames import Buffer

LANE_MARK = 64  # messages that wait in a lane; more wait at their sender
RECONNECT_MS = 5  # to a process that has not bound its inbox yet
LONGEST_RECONNECT_MS = 50

Key = tuple[str, str]  # a host, and a stream to a node of it


@dataclass
class Lane:
    """What the processes of this host send to one life of a node of another."""

    key: Key
    url: str
    socket: zmq.Socket[bytes]


class Lanes:
    """Those of one gateway, for its thread alone."""

    def __init__(self, context: Context, poller: zmq.Poller) -> None:
        self._context = context
        self._poller = poller
        self._lanes: dict[Key, Lane] = {}

    def open(self, key: Key, url: str) -> None:
        """Have this lane, at this socket. Again is no error."""
        if key not in self._lanes:
            socket = self._context.socket(zmq.PULL)
            socket.rcvhwm = LANE_MARK
            socket.bind(url)
            self._lanes[key] = Lane(key, url, socket)

    def watch(self, key: Key, link: Link) -> None:
        """Read it from now on while there is room for its stream."""
        if (lane := self._lanes.get(key)) is not None:
            self._poller.register(lane.socket, zmq.POLLIN if link.has_room(key[1]) else 0)

    def ready(self, sockets: set[object]) -> list[Lane]:
        """Those of these sockets."""
        return [lane for lane in self._lanes.values() if lane.socket in sockets]

    def read(self, lane: Lane, link: Link, put: Callable[[str, Buffer], None]) -> None:
        """Put what has come into the link, as long as that has room."""
        stream = lane.key[1]
        for _ in range(BATCH):
            if not link.has_room(stream):
                break
            try:
                frame = lane.socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            put(stream, frame.buffer)
        self.watch(lane.key, link)

    def close(self, key: Key) -> None:
        """Nothing goes there any more."""
        if (lane := self._lanes.pop(key, None)) is not None:
            self._poller.register(lane.socket, 0)
            lane.socket.close(0)
            Path(lane.url.removeprefix(IPC)).unlink(missing_ok=True)  # which ZeroMQ leaves behind

    def close_all_to(self, host: str) -> None:
        """Nothing goes to this host any more."""
        for key in [key for key in self._lanes if key[0] == host]:
            self.close(key)


class Inboxes:
    """The inboxes of the processes here, as far as something has come for them. For the gateway's thread alone."""

    def __init__(
        self, context: Context, poller: zmq.Poller, url_of: Callable[[str], str], high_water_mark: int
    ) -> None:
        self._context = context
        self._poller = poller
        self._url_of = url_of
        self._high_water_mark = high_water_mark
        self._inboxes: dict[str, zmq.Socket[bytes]] = {}  # by node

    def ready(self, sockets: set[object]) -> list[str]:
        """The nodes that had taken no more, and have room now."""
        nodes = [node for node, inbox in self._inboxes.items() if inbox in sockets]
        for node in nodes:
            self._poller.register(self._inboxes[node], 0)
        return nodes

    def hand_over(self, link: Link, stream: str) -> None:
        """Give a process what has come for it by this link, as far as it takes it."""
        while (frame := link.first(stream)) is not None:
            inbox = self._inbox(node_of(stream))
            try:
                inbox.send(frame, zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._poller.register(inbox, zmq.POLLOUT)
                return
            link.took(stream)

    def close(self, node: str) -> None:
        """The process has ended: drop what waits for it."""
        if (inbox := self._inboxes.pop(node, None)) is not None:
            self._poller.register(inbox, 0)
            inbox.close(0)

    def _inbox(self, node: str) -> zmq.Socket[bytes]:
        if (inbox := self._inboxes.get(node)) is None:
            inbox = self._inboxes[node] = self._context.socket(zmq.PUSH)
            inbox.sndhwm, inbox.linger = self._high_water_mark, 0
            inbox.reconnect_ivl, inbox.reconnect_ivl_max = RECONNECT_MS, LONGEST_RECONNECT_MS
            inbox.connect(self._url_of(node))
        return inbox
