"""Values on their way between the notebook and a rank, pickled by the sender, so that an error can name the value.

Large buffers (tensors, arrays) are not copied until the message is made, and are never in the pickle.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.errors import PickleError
from meshbook.runtime.telemetry.spans import timed
from meshbook.runtime.wire.frames import Buffer
from meshbook.runtime.wire.pickling import dumps_detached, loads

ROOM = 1 << 14  # bytes of a message beside its parcel


@dataclass(frozen=True)
class PackedValues:
    """Values by name. Objects that two of them share are still shared when it is opened."""

    stream: bytes
    buffers: tuple[Buffer | pickle.PickleBuffer, ...]

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self.stream) + sum(memoryview(buffer).nbytes for buffer in self.buffers)

    def copied(self) -> PackedValues:
        """Return a copy of its buffers: later changes by the sender do not affect it."""
        return PackedValues(
            self.stream, tuple(pickle.PickleBuffer(bytearray(memoryview(buffer))) for buffer in self.buffers)
        )

    @timed("transfer", "unpack values")
    def open(self) -> dict[str, Any]:
        """Unpickle the values. PickleError if one of them cannot be made here."""
        values: dict[str, Any] = loads([self.stream, *[memoryview(each) for each in self.buffers]], "a value")
        return values


def format_excess(parcel: PackedValues, most: int) -> str:
    """Return why a parcel exceeds the maximum size of a message; empty if it does not."""
    if parcel.size + ROOM <= most:
        return ""
    return (
        f"{parcel.size:,} bytes exceed the maximum message size ({most:,}): send less at once, or raise "
        f"MESHBOOK_MAX_MESSAGE_BYTES where the run starts"
    )


@timed("transfer", "pack values")
def pack(values: Mapping[str, Any]) -> PackedValues:
    """Pickle values, with tensors detached from their graphs. PickleError names the value that fails."""
    try:
        stream, *buffers = dumps_detached(dict(values), "a value")
    except PickleError:
        for name, value in values.items():
            dumps_detached(value, name)  # the value that fails raises here
        raise
    return PackedValues(bytes(stream), tuple(map(pickle.PickleBuffer, buffers)))
