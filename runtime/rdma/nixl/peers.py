"""What handles carry for NIXL, and what is known of the agents of other processes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

MOST_KNOWN = 16_384  # offers of a peer that are kept, of half a kilobyte each; then it is forgotten, and met anew


class NixlOffer(msgspec.Struct, frozen=True, array_like=True):
    """What a handle carries. `why` is set, and nothing else, where its owner could not register the memory."""

    agent: str = ""
    registration: int = 0  # which one of that agent: at the same address there may be another one later
    gpu: int | None = None  # its number there
    memory: bytes = b""  # what NIXL says of it
    words: bytes = b""  # the same of the block in which the word of the lease lies
    why: str = ""

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)


def unpack(packed: bytes) -> NixlOffer:
    """What `NixlOffer.pack` has made."""
    return msgspec.msgpack.decode(packed, type=NixlOffer)


@dataclass(slots=True)
class NixlPeer:
    """The agent of another process, as this one knows it."""

    known: set[int] = field(default_factory=set)  # the registrations that were taken in
    under_way: int = 0  # requests
    is_broken: bool = False  # it has to be met anew
    has_answered: bool = False

    def knows(self, offer: NixlOffer) -> bool:
        return offer.registration in self.known and not self.is_broken

    @property
    def is_to_be_forgotten(self) -> bool:
        """Whether it has to be met anew. Seldom: each new connection leaves two descriptors open on either side."""
        return self.is_broken or len(self.known) >= MOST_KNOWN

    def forget(self) -> None:
        self.known.clear()
        self.is_broken = False
