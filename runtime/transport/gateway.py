"""The gateway of a host: all that its processes send to other hosts goes through it, and all that comes from there.

    a process -> lane (ipc) -> gateway ==== link (TCP, CURVE) ==== gateway -> inbox (ipc) -> a process

There is one where a run has more than one host, as a thread of the host's agent, where no code of the user's runs. It
reads a lane only while the link has room for its node, so a slow receiver slows its senders and nobody else. What a
link has to keep and to tell is decided in `link` and `window`, how long a host has been silent in `pulse`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec
import zmq

from meshbook.runtime.config import Settings
from meshbook.runtime.transport.curve import KeyPair
from meshbook.runtime.transport.entrance import Context, Dialled, Entrance, Received, Strangers
from meshbook.runtime.transport.home import GATEWAY, Home, LaneRequest, describe, host_of
from meshbook.runtime.transport.lanes import Inboxes, Lanes
from meshbook.runtime.transport.link import Attach, Attached, Bye, Noted, Part, Refused
from meshbook.runtime.transport.neighbour import Neighbour
from meshbook.runtime.transport.streams import Lives, is_stream, stream_to

logger = logging.getLogger(__name__)

LOOK_MS = 50  # how often silence is looked at
FAREWELL_SECONDS = 1.0  # for the other hosts to note that this one leaves
CLOSE_SECONDS = 2.0


class Events(Protocol):
    """What a gateway tells its agent; on its own thread, which must not wait."""

    def attached(self, host: str) -> None:
        """The link to this host stands for the first time."""

    def silent(self, host: str, seconds: float) -> None:
        """This host has not been heard for the grace time. It is given up."""

    def dismissed(self, host: str, why: str) -> None:
        """This host says that we are no part of the run any more."""

    def left(self, host: str, why: str) -> None:
        """This host says that it leaves the run."""

    def stranded(self, request: LaneRequest) -> None:
        """A process here wants to reach a node that has ended, or is on a host that is not of the run (any more)."""


@dataclass
class Leaving:
    """A gateway ends when nobody has to note it any more, or at that time."""

    why: str
    waiting: set[str]  # hosts
    until: float


class Gateway:
    """See the module. `entrance_at` is the IP address to listen on; without one no other host can connect here."""

    def __init__(self, keys: KeyPair, settings: Settings, *, entrance_at: str = "") -> None:
        self._keys = keys
        self._settings = settings
        self._context: Context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 16_384)
        self.strangers = Strangers()
        self._entrance = Entrance(self._context, entrance_at, keys, self.strangers) if entrance_at else None
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._calling = threading.Lock()  # guards _bell
        self._bell, self._ringer = self._pair()
        self._poller = zmq.Poller()
        self._neighbours: dict[str, Neighbour] = {}  # by prefix
        self._gone: list[Neighbour] = []
        self._given_up: dict[str, str] = {}  # hosts, and why
        self._lives = Lives()
        self._lanes = Lanes(self._context, self._poller)
        self._leaving: Leaving | None = None
        self._thread = threading.Thread(target=self._run, name="meshbook gateway", daemon=True)

    @property
    def prefix(self) -> str:
        """What the addresses of this host begin with, where others can connect."""
        assert self._entrance is not None
        return self._entrance.prefix

    def start(self, home: Home, events: Events) -> None:
        """Begin to serve the processes of this host."""
        self._home, self._events = home, events
        self._inboxes = Inboxes(self._context, self._poller, home.socket, self._settings.high_water_mark)
        self._door = self._context.socket(zmq.PULL)
        self._door.bind(home.socket(GATEWAY))
        self._thread.start()

    def link(self, host: str, *, dial: bool) -> None:
        """Have a link to the gateway of this host; who dials, the other must listen."""
        self._do(lambda: self._add(host, dial=dial))

    def give_up(self, host: str, why: str) -> None:
        """This host is no part of the run any more: drop what is for it, and refuse it."""
        self._do(lambda: self._give_up(host, why))

    def forget(self, node: str, life: int) -> None:
        """This life of a process of this host has ended: drop what is for it. It may have another one."""
        self._do(lambda: self._forget(node, life))

    def close_stream(self, node: str, life: int) -> None:
        """This life of a process of another host has ended: nothing goes there any more."""
        self._do(lambda: self._note_end(node, life))

    def close(self, why: str) -> None:
        """Tell the other gateways that this host leaves, and end once they know."""
        self._do(lambda: self._leave(why))
        self._thread.join(CLOSE_SECONDS)

    def _pair(self) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
        bell, ringer = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
        bell.bind("inproc://bell")
        ringer.connect("inproc://bell")
        return bell, ringer

    def _do(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        with self._calling, contextlib.suppress(zmq.ZMQError):  # full of rings, or ended
            self._ringer.send(b"", zmq.NOBLOCK)

    # -- the thread --------------------------------------------------------------------

    def _run(self) -> None:
        self._poller.register(self._bell, zmq.POLLIN)
        self._poller.register(self._door, zmq.POLLIN)
        if self._entrance is not None:
            self._poller.register(self._entrance.socket, zmq.POLLIN)
            self._poller.register(self._entrance.monitor, zmq.POLLIN)
        while not self._has_left():
            try:
                self._serve_once()
            except Exception:
                # A fault of ours in one message must not cut this host off.
                logger.exception("the gateway could not handle something")
        self._end()

    def _serve_once(self) -> None:
        ready = {socket for socket, _ in self._poller.poll(LOOK_MS)}
        if self._bell in ready or not self._commands.empty():  # one of the last may have failed before the others
            self._obey()
        if self._door in ready:
            self._open_lanes()
        self._read_links(ready)
        self._read_lanes(ready)
        for node in self._inboxes.ready(ready):
            self._hand_over_more(node)
        self._look_after_links(time.monotonic())

    def _obey(self) -> None:
        while self._bell.poll(0):
            self._bell.recv()
        while not self._commands.empty():
            self._commands.get()()

    def _leave(self, why: str) -> None:
        waiting = {host for host, each in self._neighbours.items() if each.link.was_attached and not each.is_leaving}
        self._leaving = Leaving(why, waiting, time.monotonic() + FAREWELL_SECONDS)
        for neighbour in self._neighbours.values():
            neighbour.take_leave(why)

    def _has_left(self) -> bool:
        leaving = self._leaving
        if leaving is None:
            return False
        leaving.waiting &= self._neighbours.keys()  # without those that were given up meanwhile
        return not leaving.waiting or time.monotonic() > leaving.until

    def _end(self) -> None:
        for neighbour in self._neighbours.values():
            neighbour.hang_up(linger=True)
        if self._entrance is not None:
            self._entrance.close()
        self._context.destroy()

    # -- links ---------------------------------------------------------------------------

    def _add(self, host: str, *, dial: bool) -> None:
        if host in self._neighbours:
            return
        self._given_up.pop(host, None)  # one that was lost had this very port
        make = functools.partial(Dialled, self._context, host, self._keys, self.strangers) if dial else None
        grace = self._settings.host_timeout
        self._neighbours[host] = Neighbour(self._home.prefix, host, grace, self._poller, make)

    def _give_up(self, host: str, why: str) -> None:
        self._given_up[host] = why
        if (neighbour := self._neighbours.pop(host, None)) is not None:
            neighbour.refuse(why)
            self._gone.append(neighbour)
        self._lanes.close_all_to(host)

    def _read_links(self, ready: set[object]) -> None:
        if self._entrance is not None:
            if self._entrance.monitor in ready:
                self._entrance.note_strangers()
            if self._entrance.socket in ready:
                for received in self._entrance.read():
                    self._take_from_entrance(received)
        for neighbour in list(self._neighbours.values()):
            for received in neighbour.read(ready):
                self._take(neighbour, received)

    def _take_from_entrance(self, received: Received) -> None:
        host = received.message.host if isinstance(received.message, Attach) else ""
        if host in self._given_up:
            received.line.send(Refused(self._given_up[host]))
        elif host and host not in self._neighbours:
            self.strangers.refuse(f"{describe(host)} is no host of this run, or not yet")
        elif (found := self._neighbours.get(host) or self._on(received)) is not None:
            self._take(found, received)
        elif not any(each.was_on(received.line) for each in (*self._neighbours.values(), *self._gone)):
            self.strangers.refuse("it belongs to no link")

    def _on(self, received: Received) -> Neighbour | None:
        """Whose connection that is; nobody's where the other host has made another one since."""
        return next((each for each in self._neighbours.values() if each.is_on(received.line)), None)

    def _take(self, neighbour: Neighbour, received: Received) -> None:
        message = received.message
        if isinstance(message, Refused):
            self._note_farewell(neighbour)
            return self._events.dismissed(neighbour.host, message.why)
        if isinstance(message, Bye):
            return self._take_bye(neighbour, received, message.why)
        if isinstance(message, Noted):
            return self._note_farewell(neighbour)
        if isinstance(message, Part):
            return self._take_part(neighbour, received, message.stream)
        was_attached = neighbour.link.was_attached
        for stream in neighbour.take(received):
            self._lanes.watch((neighbour.host, stream), neighbour.link)
        if neighbour.link.was_attached and not was_attached:
            self._events.attached(neighbour.host)
        if self._leaving is not None and isinstance(message, Attach | Attached):
            neighbour.take_leave(self._leaving.why)  # what was said on the connection before may not have arrived
        return None

    def _take_bye(self, neighbour: Neighbour, received: Received, why: str) -> None:
        received.line.send(Noted())
        self._note_farewell(neighbour)  # who leaves as well does not wait for us
        if not neighbour.is_leaving:
            neighbour.is_leaving = True
            self._events.left(neighbour.host, why)

    def _note_farewell(self, neighbour: Neighbour) -> None:
        if self._leaving is not None:
            self._leaving.waiting.discard(neighbour.host)

    def _take_part(self, neighbour: Neighbour, received: Received, stream: str) -> None:
        if not is_stream(stream):
            self.strangers.refuse("a piece that is for no node")
        elif self._lives.is_former(stream):
            neighbour.hear()
        else:
            neighbour.take(received)
            # What is for one that comes after the present one waits until the end of that is told here.
            if self._lives.is_present(stream):
                self._inboxes.hand_over(neighbour.link, stream)

    def _look_after_links(self, now: float) -> None:
        for neighbour in list(self._neighbours.values()):
            silence = neighbour.look_after(now)
            if silence > self._grace_of(neighbour):
                self._give_up(neighbour.host, f"it had not been heard for {silence:.1f} s")
                self._events.silent(neighbour.host, silence)

    def _grace_of(self, neighbour: Neighbour) -> float:
        if neighbour.link.was_attached:
            return self._settings.host_timeout
        return 2 * self._settings.launch_timeout  # longer than the controller waits, who knows what to say

    # -- the ways to processes here ------------------------------------------------------------

    def _open_lanes(self) -> None:
        while self._door.poll(0):
            try:
                request = msgspec.msgpack.decode(self._door.recv(), type=LaneRequest)
            except (msgspec.DecodeError, msgspec.ValidationError) as error:
                self.strangers.refuse(f"no request for a lane: {error}")
                continue
            self._open_lane(request)

    def _open_lane(self, request: LaneRequest) -> None:
        host, stream = host_of(request.to), stream_to(request.to.node, request.life)
        neighbour = self._neighbours.get(host)
        if neighbour is None or self._lives.is_former(stream):
            self._events.stranded(request)
        else:
            self._lanes.open((host, stream), self._home.lane(request))
            self._lanes.watch((host, stream), neighbour.link)

    def _read_lanes(self, ready: set[object]) -> None:
        for lane in self._lanes.ready(ready):
            neighbour = self._neighbours[lane.key[0]]
            self._lanes.read(lane, neighbour.link, neighbour.put)

    def _hand_over_more(self, node: str) -> None:
        """The process takes messages again, or is another one."""
        for neighbour in self._neighbours.values():
            self._inboxes.hand_over(neighbour.link, self._lives.present(node))

    def _forget(self, node: str, life: int) -> None:
        self._note_end(node, life)
        self._inboxes.close(node)
        self._hand_over_more(node)

    def _note_end(self, node: str, life: int) -> None:
        self._lives.end(node, life)
        stream = stream_to(node, life)
        for host, neighbour in self._neighbours.items():
            neighbour.link.drop(stream)
            self._lanes.close((host, stream))
