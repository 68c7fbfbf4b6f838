"""Broadcast of one buffer to every process of a mesh: each host reads the bytes once, its processes from one another.

`parents_of` decides which receiver fetches from which; `broadcast_receiver` carries that out.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.actor.future import Future, when_settled
from meshbook.runtime.actor.values import ValueMesh
from meshbook.runtime.errors import TransferError, TransferTimeout
from meshbook.runtime.geometry import Extent
from meshbook.runtime.rdma.backends import BufferHandle
from meshbook.runtime.rdma.broadcast_receiver import PIECE, BroadcastOrder
from meshbook.runtime.rdma.copies import RECEIVER, register_holders
from meshbook.runtime.transport.home import host_of
from meshbook.runtime.wire.messages import Address

GRACE = 0.25  # seconds for replies, beyond those for the bytes


@dataclass(frozen=True, slots=True)
class Receiving:
    """One destination of a broadcast."""

    address: Address
    into: BufferHandle | None = None  # a buffer there; None: a copy is made


def receivers_of(to: Any, size: int, handle_of: Any) -> list[Receiving]:
    """Return the destinations in rank order.

    Raises TypeError for objects without processes, and ValueError for buffers that are too small or read-only.
    """
    if isinstance(to, ValueMesh):
        handles: list[BufferHandle] = [handle_of(value) for value in to.values()]
        for rank, handle in enumerate(handles):
            if handle.size < size:
                raise ValueError(f"the buffer of rank {rank} has {handle.size:,} bytes, but {size:,} are broadcast")
            if not handle.is_writable:
                raise ValueError(
                    f"the buffer of rank {rank} is read-only, because its owner created it from read-only memory"
                )
        return [Receiving(handle.owner, handle) for handle in handles]
    addresses = getattr(to, "_addresses", None)
    if addresses is None:
        raise TypeError(
            f"broadcast_to takes a mesh of processes or of actors, or a ValueMesh of RDMABuffers, not a "
            f"{type(to).__qualname__}; spawn processes with spawn_procs() of a HostMesh"
        )
    return [Receiving(address) for address in addresses]


def parents_of(hosts: Sequence[str], own: str, pieces: int) -> list[int | None]:
    """Return for each receiver (given by its host) the receiver that it fetches from; None: the source, on host `own`.

    The first receiver of each host fetches from another host, and the others of that host from it. Hosts form a chain,
    in which each sends the bytes once: the broadcast takes as long as one transfer, plus one piece per host. With fewer
    pieces than hosts a chain would be slow, so hosts form a binary tree.
    """
    leaders: dict[str, int] = {}
    for receiver, host in enumerate(hosts):
        if host != own:
            leaders.setdefault(host, receiver)
    order = list(leaders.values())
    branches = 1 if pieces >= len(order) else 2
    above = {leader: order[(place - 1) // branches] if place else None for place, leader in enumerate(order)}
    return [
        None if host == own else above[receiver] if receiver in above else leaders[host]
        for receiver, host in enumerate(hosts)
    ]


class Broadcast:
    """One broadcast, on the caller's side."""

    def __init__(
        self, node: Any, source: BufferHandle, receivers: Sequence[Receiving], extent: Extent, seconds: float
    ) -> None:
        self._node = node
        self._source = source
        self._receivers = receivers
        self._extent = extent
        self._seconds = seconds
        self._futures: list[Future[BufferHandle]] = []
        self._done: Future[list[BufferHandle]] = Future.pending()

    def start(self, name: str, *, fresh: bool) -> Future[list[BufferHandle]]:
        """Send the orders. The future resolves to the handles of the received bytes, by rank."""
        number = secrets.randbits(63)
        if copying := [each.address for each in self._receivers if each.into is None]:
            register_holders(self._node, self._source, copying)
        hosts = [host_of(each.address) for each in self._receivers]
        pieces = -(-self._source.size // PIECE)
        parents = parents_of(hosts, host_of(self._source.owner), pieces)
        for rank, (each, parent) in enumerate(zip(self._receivers, parents, strict=True)):
            above = None if parent is None else (self._receivers[parent].address, (number, parent))
            order = BroadcastOrder((number, rank), self._source, self._seconds, above, name, fresh, each.into)
            self._futures.append(self._node.calls.ask(each.address, RECEIVER, "receive", order))
        timer = self._node.loop.call_later(self._seconds + GRACE, self._time_out)
        when_settled(self._futures, timer.cancel)
        when_settled(self._futures, self._settle)
        return self._done

    def _time_out(self) -> None:
        for future in self._futures:
            if not future.done():
                future.fail(TransferTimeout(f"no answer after {self._seconds:g} s"))

    def _settle(self) -> None:
        errors = {rank: error for rank, each in enumerate(self._futures) if (error := each.exception()) is not None}
        if errors:
            self._done.fail(self._explain(errors))
        else:
            handles = [each.get() for each in self._futures]
            self._done.resolve(lambda: handles)

    def _explain(self, errors: dict[int, BaseException]) -> BaseException:
        count = len(self._receivers)
        lines = [
            f"    rank {rank} {self._extent.point(rank)} on {self._receivers[rank].address.node}: {error}"
            for rank, error in itertools.islice(errors.items(), 10)
        ]
        if len(errors) > len(lines):
            lines.append(f"    and {len(errors) - len(lines)} more")
        reached = f"{self._source.size:,} bytes of {self._source.actor} reached {count - len(errors)} of {count} ranks"
        first = next(iter(errors.values()))
        kinds = {type(error) for error in errors.values()}
        kind = kinds.pop() if len(kinds) == 1 and isinstance(first, TransferError) else TransferError
        error: BaseException = kind("\n".join([f"{reached}; these ranks failed:", *lines]))
        error.__cause__ = first
        return error
