"""NIXL's part of handles, and what this process has recorded of other processes' agents. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

# Offers of a peer that are kept, of half a kilobyte each; beyond that the peer is forgotten and met again.
MOST_KNOWN = 16_384


class NixlOffer(msgspec.Struct, frozen=True, array_like=True):
    """NIXL's part of a handle. Only `why` is set if the owner could not register the memory."""

    agent: str = ""
    registration: int = 0  # number of the registration: memory at the same address may be registered again later
    gpu: int | None = None  # its number there
    memory: bytes = b""  # NIXL's description of it
    words: bytes = b""  # the same for the block that holds the lease's word
    why: str = ""

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)


def unpack(packed: bytes) -> NixlOffer:
    """Unpack the result of `NixlOffer.pack`."""
    return msgspec.msgpack.decode(packed, type=NixlOffer)


@dataclass(slots=True)
class NixlPeer:
    """The recorded state of another process's agent."""

    known: set[int] = field(default_factory=set)  # registrations that NIXL has loaded
    under_way: int = 0  # requests
    is_broken: bool = False  # it has to be met again
    has_answered: bool = False

    def knows(self, offer: NixlOffer) -> bool:
        return offer.registration in self.known and not self.is_broken

    @property
    def is_to_be_forgotten(self) -> bool:
        """Whether it has to be met again. Rare: each new connection leaves two descriptors open on either side."""
        return self.is_broken or len(self.known) >= MOST_KNOWN

    def forget(self) -> None:
        self.known.clear()
        self.is_broken = False
