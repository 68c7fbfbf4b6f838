"""The gateway of a host: the frames between its processes and other hosts go through it.

    a process -> lane -> gateway ==== link (TCP, CURVE) ==== gateway -> inbox -> a process

Each host of a run with several hosts has one, on the I/O thread of its agent, which runs no user code. The gateway
reads a lane only while the link has room for its node, so a slow receiver slows only its own senders. `link` and
`window` decide what a link keeps and sends; `heartbeats` measures how long a host has been silent.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import zmq

from meshbook.runtime.clock import monotonic
from meshbook.runtime.config import Settings
from meshbook.runtime.threads import Latch
from meshbook.runtime.transport.curve import KeyPair
from meshbook.runtime.transport.gateway_connections import (
    Context,
    DialledConnection,
    GatewayListener,
    Received,
    RejectedPeers,
)
from meshbook.runtime.transport.home import GATEWAY, Home, LaneRequest, describe, host_of
from meshbook.runtime.transport.host_link import HostLink
from meshbook.runtime.transport.io_loop import IN, IoLoop
from meshbook.runtime.transport.lanes import Inboxes, Key, Lanes
from meshbook.runtime.transport.link import (
    Bye,
    ByeReply,
    EndedIncarnations,
    LinkAttach,
    LinkAttached,
    Refused,
    StreamPart,
    is_stream,
    stream_to,
)
from meshbook.runtime.wire.frames import Buffer

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05  # period of the check for silent hosts
BYE_SECONDS = 1.0  # time limit for the other hosts to acknowledge Bye
CLOSE_SECONDS = 2.0


class Events(Protocol):
    """The callbacks of a gateway. They run on the I/O thread and must not wait."""

    def attached(self, host: str) -> None:
        """Handle the first connection of the link to this host."""

    def silent(self, host: str, seconds: float) -> None:
        """Handle the loss of a host that was silent for the grace time."""

    def dismissed(self, host: str, why: str) -> None:
        """Handle Refused: for that host, this host is no longer part of the run."""

    def left(self, host: str, why: str) -> None:
        """Handle Bye: that host leaves the run."""

    def stranded(self, request: LaneRequest) -> None:
        """Handle a request for a node that has ended, or whose host is not part of the run."""


@dataclass
class Leaving:
    """The state of a closing gateway: it ends when all hosts have acknowledged Bye, or at `until`."""

    why: str
    waiting: set[str]  # hosts that have not acknowledged
    until: float


class Gateway:
    """The gateway of one host. `listen_at` is the IP address to listen on; without it no host can connect here.

    `loop` is the I/O loop of the agent, which starts it; without one the gateway runs its own.
    """

    def __init__(self, keys: KeyPair, settings: Settings, *, listen_at: str = "", loop: IoLoop | None = None) -> None:
        self._keys = keys
        self._settings = settings
        self._context: Context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 16_384)
        self.rejected_peers = RejectedPeers()
        self._listener = GatewayListener(self._context, listen_at, keys, self.rejected_peers) if listen_at else None
        self._own_loop = IoLoop("meshbook gateway") if loop is None else None
        self._loop = loop or self._own_loop or IoLoop()
        self._host_links: dict[str, HostLink] = {}  # by prefix
        self._gone: list[HostLink] = []
        self._removed: dict[str, str] = {}  # hosts, and why
        self._ended = EndedIncarnations()
        self._leaving: Leaving | None = None
        self._left = Latch()
        self._has_ended = False
        self._is_scheduled = False  # `_serve` is about to run

    @property
    def prefix(self) -> str:
        """The prefix of the addresses of this host; needs a listener."""
        assert self._listener is not None
        return self._listener.prefix

    def start(self, home: Home, events: Events) -> None:
        """Start to serve the processes of this host."""
        self._home, self._events = home, events
        self._inboxes = Inboxes(self._loop, home.path, self._hand_over_more)
        self._lanes = Lanes(self._loop, home.path(GATEWAY), self._settings.max_message_bytes, self)
        self._loop.run(self._begin)
        if self._own_loop is not None:
            self._own_loop.start()

    def _begin(self) -> None:
        self._lanes.start()
        if self._listener is not None:
            self._watch(self._listener.socket)
            self._watch(self._listener.monitor)
        self._look()

    def link(self, host: str, *, dial: bool) -> None:
        """Add a link to the gateway of this host. With `dial` this side connects, else the other one must."""
        self._do(lambda: self._add(host, dial=dial))

    def remove_host(self, host: str, why: str) -> None:
        """Remove a host from the run: drop its frames and refuse its connections."""
        self._do(lambda: self._remove_host(host, why))

    def forget(self, node: str, incarnation: int) -> None:
        """Drop the frames for an ended incarnation of a process of this host. A later one may follow."""
        self._do(lambda: self._forget(node, incarnation))

    def close_stream(self, node: str, incarnation: int) -> None:
        """Stop sending to an ended incarnation of a process of another host."""
        self._do(lambda: self._note_end(node, incarnation))

    def close(self, why: str) -> None:
        """Send Bye to the other gateways, and end once they have acknowledged it."""
        self._do(lambda: self._leave(why))
        self._left.wait(CLOSE_SECONDS)
        if self._own_loop is not None:
            self._own_loop.close()

    def _do(self, command: Callable[[], None]) -> None:
        if not self._has_ended:
            self._loop.call_soon(command)
            self._loop.call_soon(self._serve)

    # -- the I/O thread ----------------------------------------------------------------

    def _watch(self, socket: zmq.Socket[bytes]) -> None:
        """Read the links whenever ZeroMQ signals on this socket.

        The descriptor is edge-triggered: it may not signal while messages wait. So `_serve` reads until there are
        none, and runs again after every call of ZeroMQ.
        """
        self._loop.register(int(socket.fd), IN, lambda flags: self._serve())

    def _serve_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        self._is_scheduled = False
        if self._has_ended:
            return
        if self._read_links():
            self._serve_soon()
        self._look_after_links(monotonic())
        if self._has_left():
            self._end()

    def _look(self) -> None:
        if not self._has_ended:
            self._serve()
            self._loop.call_later(LOOK_SECONDS, self._look)

    def _leave(self, why: str) -> None:
        waiting = {host for host, each in self._host_links.items() if each.link.was_attached and not each.is_leaving}
        self._leaving = Leaving(why, waiting, monotonic() + BYE_SECONDS)
        for host_link in self._host_links.values():
            host_link.send_bye(why)

    def _has_left(self) -> bool:
        leaving = self._leaving
        if leaving is None:
            return False
        leaving.waiting &= self._host_links.keys()  # without hosts that were removed meanwhile
        return not leaving.waiting or monotonic() > leaving.until

    def _end(self) -> None:
        self._has_ended = True
        self._lanes.end()
        self._inboxes.end()
        for host_link in self._host_links.values():
            host_link.disconnect(linger=True)
        if self._listener is not None:
            self._loop.unregister(int(self._listener.socket.fd))
            self._loop.unregister(int(self._listener.monitor.fd))
            self._listener.close()
        self._context.destroy()
        self._left.release()

    # -- links ---------------------------------------------------------------------------

    def _add(self, host: str, *, dial: bool) -> None:
        if host in self._host_links:
            return
        self._removed.pop(host, None)  # a lost host may have had the same port
        make = (
            functools.partial(DialledConnection, self._context, host, self._keys, self.rejected_peers) if dial else None
        )
        grace = self._settings.host_timeout
        self._host_links[host] = HostLink(self._home.prefix, host, grace, make, self._watch, self._loop.unregister)

    def _remove_host(self, host: str, why: str) -> None:
        self._removed[host] = why
        if (host_link := self._host_links.pop(host, None)) is not None:
            host_link.refuse(why)
            self._gone.append(host_link)
        self._lanes.close_all_to(host)

    def _read_links(self) -> bool:
        """Handle the received messages of all links, at most a batch of each; return whether there were any."""
        found = False
        if self._listener is not None:
            found = self._listener.note_rejected_peers()
            for received in self._listener.read():
                found = True
                self._take_from_listener(received)
        for host_link in list(self._host_links.values()):
            for received in host_link.read():
                found = True
                self._take(host_link, received)
        return found

    def _take_from_listener(self, received: Received) -> None:
        host = received.message.host if isinstance(received.message, LinkAttach) else ""
        if host in self._removed:
            received.connection.send(Refused(self._removed[host]))
        elif host and host not in self._host_links:
            self.rejected_peers.refuse(f"{describe(host)} is not a host of this run, or not yet")
        elif (found := self._host_links.get(host) or self._on(received)) is not None:
            self._take(found, received)
        elif not any(each.was_on(received.connection) for each in (*self._host_links.values(), *self._gone)):
            self.rejected_peers.refuse("its connection does not belong to a link")

    def _on(self, received: Received) -> HostLink | None:
        """Return the host_link that uses this connection; None if the other host has replaced it."""
        return next((each for each in self._host_links.values() if each.is_on(received.connection)), None)

    def _take(self, host_link: HostLink, received: Received) -> None:
        message = received.message
        if isinstance(message, Refused):
            self._note_bye(host_link)
            return self._events.dismissed(host_link.host, message.why)
        if isinstance(message, Bye):
            return self._take_bye(host_link, received, message.why)
        if isinstance(message, ByeReply):
            return self._note_bye(host_link)
        if isinstance(message, StreamPart):
            return self._take_part(host_link, received, message.stream)
        was_attached = host_link.link.was_attached
        for stream in host_link.take(received):
            if host_link.link.has_room(stream):
                self._lanes.resume((host_link.host, stream))
        if host_link.link.was_attached and not was_attached:
            self._events.attached(host_link.host)
        if self._leaving is not None and isinstance(message, LinkAttach | LinkAttached):
            host_link.send_bye(self._leaving.why)  # the Bye on the previous connection may be lost
        return None

    def _take_bye(self, host_link: HostLink, received: Received, why: str) -> None:
        received.connection.send(ByeReply())
        self._note_bye(host_link)  # a host that leaves too may end before it sends ByeReply
        if not host_link.is_leaving:
            host_link.is_leaving = True
            self._events.left(host_link.host, why)

    def _note_bye(self, host_link: HostLink) -> None:
        if self._leaving is not None:
            self._leaving.waiting.discard(host_link.host)

    def _take_part(self, host_link: HostLink, received: Received, stream: str) -> None:
        if not is_stream(stream):
            self.rejected_peers.refuse("a piece of an invalid stream")
        elif self._ended.is_former(stream):
            host_link.note_message()
        else:
            host_link.take(received)
            # Frames for a later incarnation wait until the gateway learns that the current one has ended.
            if self._ended.is_present(stream):
                self._inboxes.hand_over(host_link.link, stream)

    def _look_after_links(self, now: float) -> None:
        for host_link in list(self._host_links.values()):
            silence = host_link.look_after(now)
            # Before the first connection: longer than the controller's limit, whose error has more details.
            grace = self._settings.host_timeout if host_link.link.was_attached else 2 * self._settings.launch_timeout
            if silence > grace:
                self._remove_host(host_link.host, f"it was silent for {silence:.1f} s")
                self._events.silent(host_link.host, silence)

    # -- lanes and inboxes of processes here ---------------------------------------------------

    def open_lane(self, request: LaneRequest) -> Key | None:
        """Return the key of the requested lane; None if its node cannot be reached."""
        host, stream = host_of(request.to), stream_to(request.to.node, request.incarnation)
        if host not in self._host_links or self._ended.is_former(stream):
            self._events.stranded(request)
            return None
        return host, stream

    def forward(self, key: Key, frame: Buffer) -> bool:
        """Send a frame of a lane to the other host; return whether there is room for another one."""
        host, stream = key
        if (host_link := self._host_links.get(host)) is None:
            return False
        host_link.put(stream, frame)
        self._serve_soon()  # ZeroMQ was called
        return host_link.link.has_room(stream)

    def refuse_lane(self, why: str) -> None:
        """Count a connection that does not request a lane."""
        self.rejected_peers.refuse(why)

    def _hand_over_more(self, node: str) -> None:
        """Deliver waiting frames to a process that reads again, or to its successor."""
        for host_link in self._host_links.values():
            self._inboxes.hand_over(host_link.link, self._ended.present(node))
        self._serve_soon()

    def _forget(self, node: str, incarnation: int) -> None:
        self._note_end(node, incarnation)
        self._inboxes.close(node)
        self._hand_over_more(node)

    def _note_end(self, node: str, incarnation: int) -> None:
        self._ended.end(node, incarnation)
        stream = stream_to(node, incarnation)
        for host, host_link in self._host_links.items():
            host_link.link.drop(stream)
            self._lanes.close((host, stream))
