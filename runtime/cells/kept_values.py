"""Large values of cells, which stay on their rank until they are fetched: each as it was at the end of its cell.

A value of up to 256 MiB is copied. Of a larger one the rank keeps a reference, and sends it only if it is unchanged.
Once the controller has released a value, it can be fetched as long as a variable of the user holds it, unchanged. So
can the oldest ones if all copies take more than 1 GiB.
"""

from __future__ import annotations

import pickle
import sys
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshbook.runtime.cells.packed_values import PackedValues, pack
from meshbook.runtime.cells.values import BoundedStream, TooLargeError, without_graph
from meshbook.runtime.wire.pickling import dump_detached

MOST_VALUES = 16
COPIED_BYTES = 256 << 20  # of one value
ALL_COPIED_BYTES = 1 << 30
_DISCARDED = (
    "the value was discarded: a rank keeps that of the last cell, and those of the last few results with a name; "
    "run the cell with -o NAME, or assign the value to a variable on the rank"
)
_CHANGED = (
    "the value may have changed since its cell, and the rank has no copy of it: pull the variable, or end the cell "
    "with a copy, such as x.clone()"
)


class KeptValues:
    """The large values of a rank, by the origin of their cells."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, _Kept] = OrderedDict()

    def add(self, origin: str, value: Any) -> None:
        """Keep the value of a cell, as it is now."""
        copy = _copy_of(value)
        if copy is not None:
            self._values[origin] = _Kept(_reference_to(value), copy=copy)
        else:
            self._values[origin] = _Kept(lambda: value, versions=_versions_of(value))
        while len(self._values) > MOST_VALUES:
            self._values.popitem(last=False)
        room = ALL_COPIED_BYTES
        for kept in reversed(self._values.values()):
            if kept.copy is not None and (room := room - kept.copy.size) < 0:
                kept.release()

    def pack(self, origin: str) -> PackedValues:
        """Return the value of a cell, under the name `value`. Raises KeyError if it is gone, or may have changed."""
        if origin not in self._values:
            raise KeyError(_DISCARDED)
        return self._values[origin].pack()

    def release(self, origin: str) -> None:
        """Keep the value of a cell only as long as the user's code does."""
        if (kept := self._values.get(origin)) is not None:
            kept.release()


@dataclass
class _Kept:
    """A value: its copy, or a function that finds it, and what shows whether it has changed."""

    find: Callable[[], Any]
    copy: PackedValues | None = None
    checksum: int | None = None
    versions: tuple[Any, ...] | None = None

    def pack(self) -> PackedValues:
        if self.copy is not None:
            return self.copy
        if (value := self.find()) is None:
            raise KeyError(_DISCARDED)
        parcel = pack({"value": without_graph(value)})
        if self.checksum is not None:
            is_same = _checksum_of(parcel) == self.checksum
        else:
            is_same = self.versions is not None and _versions_of(value) == self.versions
        if not is_same:
            raise KeyError(_CHANGED)
        return parcel

    def release(self) -> None:
        if self.copy is None:
            self.find = _reference_to(self.find())
        elif self.find() is not None:
            self.checksum = _checksum_of(self.copy)
        self.copy = None


def _reference_to(value: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(value)
    except TypeError:  # such as text or a list
        return lambda: None


def _copy_of(value: Any) -> PackedValues | None:
    """Return a copy of a value; None if it is too large, or cannot be pickled."""
    buffers: list[pickle.PickleBuffer] = []
    room = COPIED_BYTES

    def take(buffer: pickle.PickleBuffer) -> None:
        nonlocal room
        raw = buffer.raw()
        room -= raw.nbytes
        if room < 0:
            raise TooLargeError
        buffers.append(pickle.PickleBuffer(bytearray(raw)))

    stream = BoundedStream(COPIED_BYTES)
    try:
        dump_detached({"value": without_graph(value)}, stream, take)
    except Exception:  # also of the value's own code, such as `__reduce__`; a later fetch reports it
        return None
    return PackedValues(stream.getvalue(), tuple(buffers))


def _checksum_of(parcel: PackedValues) -> int:
    found = zlib.crc32(parcel.stream)
    for buffer in parcel.buffers:
        found = zlib.crc32(memoryview(buffer).cast("B"), found)
    return found


def _versions_of(value: Any) -> tuple[Any, ...] | None:
    """Return what changes with each write of torch to a tensor or to those of a module; None for other values."""
    if isinstance(value, str | bytes):
        return ()
    if (torch := sys.modules.get("torch")) is None:
        return None
    if isinstance(value, torch.nn.Module):
        tensors = [*value.parameters(), *value.buffers()]
    elif isinstance(value, torch.Tensor):
        tensors = [value]
    else:
        return None
    try:
        return tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)
    except RuntimeError:  # a tensor without memory, or of inference mode
        return None
