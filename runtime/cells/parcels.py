"""Values on their way between the notebook and a rank: pickled where they are, so that it is known which of them fails.

What is large in them (tensors, arrays) stays where it lies until the message is made, and is never in the pickle.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.errors import PickleError
from meshbook.runtime.telemetry.spans import timed
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.pickling import dumps_on_cpu, loads

ROOM = 1 << 14  # bytes of a message for what it has beside a parcel


@dataclass(frozen=True)
class Parcel:
    """Values by name. What two of them share they still share when it is opened."""

    stream: bytes
    buffers: tuple[Buffer | pickle.PickleBuffer, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.stream) + sum(memoryview(buffer).nbytes for buffer in self.buffers)

    def copied(self) -> Parcel:
        """The same apart from where it was packed: what is changed there afterwards does not show."""
        return Parcel(self.stream, tuple(pickle.PickleBuffer(bytearray(memoryview(buffer))) for buffer in self.buffers))

    @timed("transfer", "unpack values")
    def open(self) -> dict[str, Any]:
        """The values. PickleError where one of them cannot be made here."""
        values: dict[str, Any] = loads([self.stream, *[memoryview(each) for each in self.buffers]], "a value")
        return values


def format_excess(parcel: Parcel, most: int) -> str:
    """Why a parcel cannot be sent where a message has at most so many bytes; empty where it can."""
    if parcel.size + ROOM <= most:
        return ""
    return (
        f"{parcel.size:,} bytes are more than a message may have ({most:,}): move less at once, or raise "
        f"MESHBOOK_MAX_MESSAGE_BYTES where the run starts"
    )


@timed("transfer", "pack values")
def pack(values: Mapping[str, Any]) -> Parcel:
    """The values as they travel; tensors as they will be on the CPU. PickleError names the one that cannot."""
    try:
        stream, *buffers = dumps_on_cpu(dict(values), "a value")
    except PickleError:
        for name, value in values.items():
            dumps_on_cpu(value, name)  # it is this one that raises
        raise
    return Parcel(bytes(stream), tuple(map(pickle.PickleBuffer, buffers)))
