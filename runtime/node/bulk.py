"""Large bodies of messages: to processes of the same host they go through shared memory, and the frame says where.

Only to those that have said they can open ours. The first large message to a process goes in its frame, with an offer
to the keeper there: it tries, and tells. So what does not work (another pid namespace, say) costs nothing but the time
that it took before, and wherever a segment cannot be had, the body goes in the frame.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from meshbook.runtime.memory.identity import ProcessMark, own_mark
from meshbook.runtime.memory.layout import Reference, starts_of
from meshbook.runtime.memory.mappings import Mappings
from meshbook.runtime.memory.segments import Pool, Segment
from meshbook.runtime.node.clock import Later
from meshbook.runtime.node.routes import Routes
from meshbook.runtime.transport.home import host_of
from meshbook.runtime.transport.memory import SCHEME
from meshbook.runtime.wire.frames import Body, Buffer, Elsewhere, Lost, is_whole, pack, pack_elsewhere, unpack
from meshbook.runtime.wire.messages import Address, Message

logger = logging.getLogger(__name__)

TICK = 5.0  # seconds between two looks at what is not used any more
PROBE_BYTES = 1
ROOM = 1 << 16  # bytes of the limit of a message that its header may take
LAST_SECONDS = 0.3  # that a node that closes waits for what it has sent to be opened; what is in sockets has as long


class Bulk:
    """The bodies of one node that do not travel in frames. `tell` tells the keeper of a node something."""

    def __init__(self, routes: Routes, tell: Callable[..., None], later: Later, *, least: int, limit: int) -> None:
        # From so many bytes on; among the threads of one process there is nothing to be gained.
        self.least: float = least if least and not routes.own.url.startswith(SCHEME) else math.inf
        self.refuses = ""  # why this process wants its messages in frames
        self._routes = routes
        self._limit = limit
        self._tell = tell
        self._later = later
        self._lock = threading.Lock()  # guards what is made when it is first needed, and the ticking
        self._pool: Pool | None = None
        self._probe: tuple[Segment, ProcessMark] | None = None
        self._mappings: Mappings | None = None
        self._is_ticking = False
        self._closed = False
        self._numbers = itertools.count(1)
        self._peers: dict[str, ProcessMark | int] = {}  # who reads ours; or the number of the offer that was made
        self._complained: set[str] = set()

    # -- sending --------------------------------------------------------------------

    def takes(self, size: int) -> bool:
        """Whether a body of so many bytes may go another way than in its frame."""
        return self.least <= size <= self._limit - ROOM

    def pack(self, message: Message, body: Body, size: int, to: Address) -> Buffer:
        """One frame of a message with a body of so many bytes. Raises MessageTooLarge."""
        with self.shipment(body, size, [to]) as frame_for:
            return frame_for(message, to)

    @contextmanager
    def shipment(
        self, body: Body, size: int, receivers: Sequence[Address]
    ) -> Iterator[Callable[[Message, Address], Buffer]]:
        """What packs messages to these nodes that have one body, which is copied once for all of them."""
        readers = self._readers(receivers) if self.takes(size) else {}
        taken = self._fill(body) if readers else None

        def in_frame(message: Message, to: Address) -> Buffer:
            return pack(message, body, self._limit)

        if taken is None:
            yield in_frame
            return
        pool, segment = taken
        lengths = [memoryview(part).nbytes for part in body]

        def frame_for(message: Message, to: Address) -> Buffer:
            reader = readers.get(to.node)
            reference = pool.lend(segment, reader, is_shared=len(receivers) == 1) if reader is not None else None
            if reference is None:
                return in_frame(message, to)
            self._routes.bytes += size
            return pack_elsewhere(message, lengths, reference)

        try:
            yield frame_for
        finally:
            pool.done(segment)

    def keep(self, frame: Buffer) -> Buffer:
        """A frame that is to wait for another process than it was made for: with all in it."""
        if is_whole(frame):
            return frame
        message, body = unpack(frame)
        assert isinstance(body, Elsewhere)
        parts = self._pool.parts_of(body.reference, body.lengths) if self._pool is not None else None
        return frame if parts is None else pack(message, parts, self._limit)

    def _readers(self, receivers: Sequence[Address]) -> dict[str, ProcessMark]:
        found = ((to.node, self._reader(to)) for to in receivers)
        return {node: reader for node, reader in found if reader is not None}

    def _reader(self, to: Address) -> ProcessMark | None:
        known = self._peers.get(to.node)
        if known is None and to.node != self._routes.own.node and host_of(to) == host_of(self._routes.own):
            self._offer(to)
        return known if isinstance(known, ProcessMark) else None

    def _fill(self, body: Body) -> tuple[Pool, Segment] | None:
        lengths = [memoryview(part).nbytes for part in body]
        try:
            pool = self._own_pool()
            segment = pool.take(body, starts_of(lengths)[-1])
        except OSError as error:  # no descriptors, no memory
            logger.debug("a message of %s bytes goes in its frame: %s", f"{sum(lengths):,}", error)
            return None
        self._tick_soon()
        return pool, segment

    def _own_pool(self) -> Pool:
        with self._lock:
            if self._pool is None:
                self._pool = Pool()
            return self._pool

    # -- who can read what this node has ------------------------------------------------

    def _offer(self, to: Address) -> None:
        number = next(self._numbers)
        if self._peers.setdefault(to.node, number) == number:  # else another thread has just done it
            try:
                self._tell(to, "offered", self._routes.own, number, self._make_probe())
            except OSError as error:
                self._complain(f"large messages go through sockets: {error}")

    def _make_probe(self) -> Reference:
        """A segment for nobody, that is there as long as this node."""
        with self._lock:
            if self._probe is None:
                self._probe = Segment(PROBE_BYTES), own_mark()
            segment, own = self._probe
            return Reference(own, segment.descriptor, segment.token, segment.size, segment.address, own, 0, 0, False)

    def heed_offer(self, sender: Address, number: int, probe: Reference) -> None:
        """Another node asks whether this one can read its segments."""
        why = self.refuses or self._own_mappings().can_open(probe)
        self._tell(sender, "accepted", self._routes.own.node, number, own_mark(), why)

    def heed_answer(self, node: str, number: int, reader: ProcessMark, why: str) -> None:
        """What a node says to the offer of this number; `why` it cannot, if so."""
        if why:
            self._complain(
                f"large messages to {node} go through sockets, as it cannot map memory of this process: {why}"
            )
        elif self._peers.get(node) == number:
            self._peers[node] = reader

    def forget(self, node: str) -> None:
        """Another process is that node now, or will be."""
        self._peers.pop(node, None)

    def _complain(self, text: str) -> None:
        kind = text.partition(":")[2]
        if kind not in self._complained:
            self._complained.add(kind)
            logger.info("%s", text)

    # -- receiving --------------------------------------------------------------------

    def open(self, body: Elsewhere) -> Body:
        """The parts of a body that is not in its frame; who reads one that cannot be reached gets an error."""
        try:
            parts = self._own_mappings().open(body.reference, body.lengths)
        except OSError as error:
            return Lost.body(body.size, self._explain(body.reference, error))
        self._tick_soon()
        return parts

    def _explain(self, reference: Reference, error: OSError) -> str:
        owner = reference.owner.pid
        if isinstance(error, FileNotFoundError):
            return f"process {owner} of this host, which sent it, has ended, and its memory with it; ask again"
        return f"its {reference.size:,} bytes are in memory of process {owner}: {error}"

    def _own_mappings(self) -> Mappings:
        with self._lock:
            if self._mappings is None:
                self._mappings = Mappings()
            return self._mappings

    # -- by and by, and the end ----------------------------------------------------------

    def _tick_soon(self) -> None:
        with self._lock:
            if self._is_ticking or self._closed:
                return
            self._is_ticking = True
        self._later(TICK, self._tick)

    def _tick(self) -> None:
        with self._lock:
            self._is_ticking = False
            kept: list[Any] = [each for each in (self._pool, self._mappings) if each is not None]
        left = [each.trim() for each in kept]
        if any(left):
            self._tick_soon()

    def close(self) -> None:
        """What was sent is still waited for a moment; views of what came stay."""
        with self._lock:
            self._closed = True
            pool, mappings, probe = self._pool, self._mappings, self._probe
            self._probe = None
        if pool is not None:
            pool.close(LAST_SECONDS)
        if mappings is not None:
            mappings.close()
        if probe is not None:
            probe[0].close()
