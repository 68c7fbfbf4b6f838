"""What handles carry for NIXL, and what is known of the agents of other processes. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

MOST_KNOWN = 1024  # offers of a peer that are kept; then it is forgotten, and met anew


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """What a handle carries. `why` is set, and nothing else, where its owner could not register the memory."""

    agent: str = ""
    registration: int = 0  # which one of that agent: at the same address there may be another one later
    address: int = 0
    size: int = 0
    gpu: int | None = None  # its number there
    memory: bytes = b""  # what NIXL says of it
    words: bytes = b""  # the same of the block in which the word of the lease lies
    why: str = ""

    def overlaps(self, other: Offer) -> bool:
        return self.address < other.address + other.size and other.address < self.address + self.size

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(self)


def unpack(packed: bytes) -> Offer:
    """What `Offer.pack` has made."""
    return msgspec.msgpack.decode(packed, type=Offer)


@dataclass(slots=True)
class Peer:
    """The agent of another process, as this one knows it."""

    known: dict[int, Offer] = field(default_factory=dict)  # what was taken in, by registration
    under_way: int = 0  # requests
    is_broken: bool = False  # it has to be met anew
    has_answered: bool = False

    def knows(self, offer: Offer) -> bool:
        return offer.registration in self.known and not self.is_broken

    def must_be_forgotten_for(self, offer: Offer) -> bool:
        """Whether what was taken in before would be in the way: NIXL finds keys by address, old ones as well."""
        if self.is_broken or len(self.known) >= MOST_KNOWN:
            return True
        return any(offer.overlaps(other) for other in self.known.values())

    def forget(self) -> None:
        self.known.clear()
        self.is_broken = False
