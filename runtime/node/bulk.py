"""Large message bodies: shared memory carries them to processes of the same host; the frame holds a reference.

A peer must first confirm that it can open the memory of this process. The first large message to a peer travels in its
frame, together with an offer to its control actor, which tries to open a probe and replies. If that fails (for example
in another pid namespace), or no segment can be allocated, bodies travel in their frames as before.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from meshbook.runtime.memory.layout import SegmentReference, starts_of
from meshbook.runtime.memory.mappings import Mappings
from meshbook.runtime.memory.process_identity import ProcessMark, own_mark
from meshbook.runtime.memory.segments import SegmentPool, SharedSegment
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.transport.home import host_of
from meshbook.runtime.transport.io_loop import CallLater
from meshbook.runtime.transport.memory import SCHEME
from meshbook.runtime.wire.frames import Body, BodyElsewhere, Buffer, LostBody, is_whole, pack, pack_elsewhere, unpack
from meshbook.runtime.wire.messages import Address, Message

logger = logging.getLogger(__name__)

TICK = 5.0  # seconds between two releases of unused memory
PROBE_BYTES = 1
ROOM = 1 << 16  # bytes of the message limit that are reserved for the header
LAST_SECONDS = 0.3  # time that a closing node waits for peers to open its bodies; sockets get as long to drain


class Shipment:
    """One body for some nodes: in shared memory for the `readers`, if there is a segment, and in frames for others."""

    def __init__(
        self,
        routes: Routes,
        pool: SegmentPool,
        body: Body,
        readers: Mapping[str, ProcessMark],
        *,
        limit: int,
        is_shared: bool,
    ) -> None:
        self.segment: SharedSegment | None = None
        self._routes = routes
        self._pool = pool
        self._body = body
        self._readers = readers
        self._limit = limit
        self._is_shared = is_shared

    def lends_to(self, to: Address) -> bool:
        """Whether the frame for this node has no copy of the body."""
        return self.segment is not None and to.node in self._readers

    def lent_to(self, to: Address) -> dict[int, int]:
        """Return the references that this node may not have received yet, by word and ticket."""
        reader = self._readers.get(to.node)
        segment = self.segment
        lent = segment.readers.copy().items() if segment is not None else ()
        return {word: ticket for word, (ticket, mark) in lent if mark == reader}

    def withdraw(self, lent: Mapping[int, int]) -> None:
        """Withdraw references that the node has not received, and will not receive any more."""
        if self.segment is not None:
            self._pool.withdraw(self.segment, lent)

    def pack(self, message: Message, to: Address) -> Buffer:
        """Return the frame of a message with this body."""
        reference, reader = None, self._readers.get(to.node)
        if self.segment is not None and reader is not None:
            # An OSError: called by a finalizer that interrupts another message.
            with contextlib.suppress(OSError):
                reference = self._pool.lend(self.segment, reader, is_shared=self._is_shared)
        if reference is None:
            return pack(message, self._body, self._limit)
        lengths = [memoryview(part).nbytes for part in self._body]
        self._routes.bytes += sum(lengths)
        return pack_elsewhere(message, lengths, reference)


class Bulk:
    """The message bodies of one node that travel outside frames. `notify` sends a message to a node's control actor."""

    def __init__(
        self, routes: Routes, notify: Callable[..., None], call_later: CallLater, *, least: int, limit: int
    ) -> None:
        # Smallest body for shared memory, in bytes; never used between the threads of one process.
        self.least: float = least if least and not routes.own.url.startswith(SCHEME) else math.inf
        self.refuses = ""  # the reason if this process accepts bodies in frames only
        self._routes = routes
        self._limit = limit
        self._notify = notify
        self._call_later = call_later
        self._pool = SegmentPool()
        self._mappings = Mappings()
        self._probes: list[SharedSegment] = []  # one, made on first use; two threads may make two
        self._is_ticking = False
        self._closed = False
        self._numbers = itertools.count(1)
        self._peers: dict[str, ProcessMark | int] = {}  # the mark of a peer that reads ours, or the number of the offer
        self._logged: set[str] = set()

    # -- sending --------------------------------------------------------------------

    def takes(self, size: int) -> bool:
        """Whether a body of this size may travel outside its frame."""
        return self.least <= size <= self._limit - ROOM

    def pack(self, message: Message, body: Body, size: int, to: Address) -> Buffer:
        """Return the frame of a message with a body of `size` bytes. Raises MessageTooLarge."""
        with self.shipment(body, size, [to]) as shipment:
            return shipment.pack(message, to)

    @contextlib.contextmanager
    def shipment(self, body: Body, size: int, receivers: Sequence[Address]) -> Iterator[Shipment]:
        """Yield the shipment of a body to these nodes; the body is copied once for all."""
        readers: dict[str, ProcessMark] = {}
        own = self._routes.own
        for to in receivers if self.takes(size) else ():
            known = self._peers.get(to.node)
            if isinstance(known, ProcessMark):
                readers[to.node] = known
            elif known is None and to.node != own.node and host_of(to) == host_of(own):
                self._offer(to)
        count = len(receivers)
        shipment = Shipment(self._routes, self._pool, body, readers, limit=self._limit, is_shared=count == 1)
        try:
            if readers:
                shipment.segment = self._fill(body, shipment)
            yield shipment
        finally:
            if shipment.segment is not None:
                self._pool.done(shipment.segment)

    def keep(self, frame: Buffer) -> Buffer:
        """Return a frame that contains its body, so that a process other than the intended one can receive it."""
        if is_whole(frame):
            return frame
        message, body = unpack(frame)
        assert isinstance(body, BodyElsewhere)
        parts = self._pool.parts_of(body.reference, body.lengths)
        return frame if parts is None else pack(message, parts, self._limit)

    def _fill(self, body: Body, sender: Shipment) -> SharedSegment | None:
        lengths = [memoryview(part).nbytes for part in body]
        try:
            segment = self._pool.take(body, starts_of(lengths)[-1], sender)
        except OSError as error:  # no descriptors, no memory
            logger.debug("sending a body of %s bytes in its frame: %s", f"{sum(lengths):,}", error)
            return None
        self._tick_soon()
        return segment

    # -- peers that can read the memory of this node ------------------------------------

    def _offer(self, to: Address) -> None:
        number = next(self._numbers)
        if self._peers.setdefault(to.node, number) == number:  # else another thread has just made an offer
            try:
                self._notify(to, "offered", self._routes.own, number, self._make_probe())
            except OSError as error:
                self._log_once(f"sending large messages through sockets: {error}")

    def _make_probe(self) -> SegmentReference:
        """Return a reference to a segment that exists as long as this node; a peer opens it as a test."""
        if not self._probes:
            self._probes.append(SharedSegment(PROBE_BYTES))
        segment, own = self._probes[0], own_mark()
        return SegmentReference(own, segment.descriptor, segment.token, segment.size, segment.address, own, 0, 0, False)

    def handle_offer(self, sender: Address, number: int, probe: SegmentReference) -> None:
        """Try to open the probe of another node and reply to its offer."""
        why = self.refuses or self._mappings.can_open(probe)
        self._notify(sender, "accepted", self._routes.own.node, number, own_mark(), why)

    def handle_offer_reply(self, node: str, number: int, reader: ProcessMark, why: str) -> None:
        """Handle the reply to an offer; `why` is the reason if the peer cannot open the probe, else empty."""
        if why:
            self._log_once(
                f"sending large messages to {node} through sockets, as it cannot map memory of this process: {why}"
            )
        elif self._peers.get(node) == number:
            self._peers[node] = reader

    def forget(self, node: str) -> None:
        """Discard the state of a peer, because another process becomes that node."""
        self._peers.pop(node, None)

    def _log_once(self, text: str) -> None:
        kind = text.partition(":")[2]
        if kind not in self._logged:
            self._logged.add(kind)
            logger.info("%s", text)

    # -- receiving --------------------------------------------------------------------

    def open(self, body: BodyElsewhere) -> Body:
        """Return the parts of a body outside its frame. If it is unreachable, unpickling the result raises an error."""
        try:
            parts = self._mappings.open(body.reference, body.lengths)
        except OSError as error:
            owner = body.reference.owner.pid
            if isinstance(error, FileNotFoundError):
                why = f"its sender, process {owner} of this host, has exited; repeat the call"
            else:
                why = f"its {body.reference.size:,} bytes in the memory of process {owner} cannot be mapped: {error}"
            return LostBody.body(body.size, why)
        self._tick_soon()
        return parts

    # -- periodic release, and the end ---------------------------------------------------

    def _tick_soon(self) -> None:
        if not self._is_ticking and not self._closed:
            self._is_ticking = True
            self._call_later(TICK, self._tick)

    def _tick(self) -> None:
        self._is_ticking = False
        left = [self._pool.trim(), self._mappings.trim()]
        if any(left):
            self._tick_soon()

    def close(self) -> None:
        """Release all memory. Waits `LAST_SECONDS` for peers to open what was sent; received views stay valid."""
        self._closed = True
        self._pool.close(LAST_SECONDS)
        self._mappings.close()
        while self._probes:
            self._probes.pop().close()
