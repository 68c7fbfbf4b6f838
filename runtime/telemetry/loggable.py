"""Values that `meshbook.log` takes: numbers, tensors and arrays with one element, histograms and images.

A value on a GPU is never waited for. Its copy into pinned memory is queued on the stream, with an event after it, and
is read once the event has happened. No library is imported here: a value of a library comes with it.
"""

from __future__ import annotations

import contextlib
import io
import math
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator
from numbers import Real
from typing import Any, Protocol

from meshbook.runtime import devices
from meshbook.runtime.memory.cuda import beside_captures

BINS = 64


class Pending(Protocol):
    """A value that may still be on its way from a GPU; `read` waits for it."""

    def has_arrived(self) -> bool: ...
    def read(self) -> float | bytes: ...


class Picture(bytes):
    """An image as PNG."""

    def has_arrived(self) -> bool:
        return True

    def read(self) -> bytes:
        return self


class Histogram:
    """The distribution of values for `meshbook.log`: `meshbook.log(weights=meshbook.Histogram(layer.weight))`.

    `values`: a tensor or an array of any shape, or a sequence of numbers; those that are not finite are left out.
    `counts`: of `bins` bins of equal width between the lowest and the highest value; `edges`: one more, in rising
    order. Of values on a GPU the bins are computed there. Raises TypeError if the values are no numbers, ValueError if
    there are no bins.
    """

    def __init__(self, values: Any, bins: int = BINS) -> None:
        if not isinstance(bins, int) or bins < 1:
            raise ValueError(f"bins must be a positive integer, not {bins!r}")
        self._bins = bins
        self._pending = _bin_on_gpu(values, bins) if getattr(values, "is_cuda", False) else None
        self._counts, self._edges = ([], []) if self._pending is not None else _bin(values, bins)

    @classmethod
    def from_counts(cls, counts: Any, edges: Any) -> Histogram:
        """Return a histogram whose bins have been counted; `edges` has one entry more than `counts`."""
        made = cls((), 1)
        made._counts, made._edges = [float(count) for count in counts], [float(edge) for edge in edges]
        if len(made._edges) != len(made._counts) + 1:
            raise ValueError(f"{len(made._counts)} counts need {len(made._counts) + 1} edges, not {len(made._edges)}")
        return made

    @property
    def counts(self) -> list[float]:
        """The number of values in each bin; waits for a GPU that still computes them."""
        self._read()
        return self._counts

    @property
    def edges(self) -> list[float]:
        """The edges of the bins; waits for a GPU that still computes them."""
        self._read()
        return self._edges

    def has_arrived(self) -> bool:
        """Whether reading the bins does not wait."""
        return self._pending is None or self._pending.has_arrived()

    def read(self) -> bytes:
        """Return counts and edges as float64."""
        return array("d", [*self.counts, *self.edges]).tobytes()

    def _read(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            *self._counts, low, high = pending.read_all()
            self._edges = _edges(low, high, self._bins)


def loggable(name: str, value: Any) -> float | Pending:
    """Return a value in the form in which it is sent, or a copy of it that is on its way from a GPU.

    TypeError for anything else than a number, a tensor or an array with one element, a histogram or an image;
    ValueError for a number that is too large for a float.
    """
    if isinstance(value, Real):  # numbers of numpy as well
        return to_float(name, value)
    if hasattr(value, "has_arrived"):  # a histogram, or what this function has returned before
        pending: Pending = value
        return pending
    if (picture := _picture(value)) is not None:
        return picture
    if hasattr(value, "item") and hasattr(value, "shape"):
        if math.prod(value.shape) != 1:
            remedy = "log its mean, or meshbook.Histogram(value)"
            raise TypeError(f"{name} has {math.prod(value.shape):,} elements, shape {tuple(value.shape)}; {remedy}")
        if getattr(value, "is_cuda", False):
            return _Copy(value)
        value = value.item()
        if isinstance(value, Real):
            return to_float(name, value)
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    raise TypeError(
        f"meshbook.log() takes numbers, tensors and arrays with one element, histograms and images; "
        f"{name} is a {type(value).__name__}: {shown}"
    )


def to_float(name: str, number: Any) -> float:
    """Return a number as a float. Raises ValueError if it is finite, and too large for one."""
    try:
        found = float(number)
    except OverflowError:
        found = math.inf
    if math.isinf(found) and abs(number) != math.inf:
        raise ValueError(f"{name} is beyond the largest finite float, {sys.float_info.max:.3g}")
    return found


# -- values on a GPU -----------------------------------------------------------------------


class _Copy:
    """Numbers of a GPU on their way into pinned memory; `event` happens once they are there."""

    __slots__ = ("_device", "_event", "_into")

    def __init__(self, tensor: Any) -> None:
        if devices.is_capturing(tensor.device):
            raise RuntimeError(
                "meshbook.log() cannot read a value while a CUDA graph is captured; log it after the graph's replay()"
            )
        # Convert on the GPU first: in one step torch copies into memory that is not pinned, and waits. Without
        # blocking, a copy to the CPU goes into pinned memory, on the current stream.
        self._into = self._converted(tensor.detach()).to("cpu", non_blocking=True)
        self._device = tensor.device
        self._event = devices.record_event(tensor.device)

    @staticmethod
    def _converted(tensor: Any) -> Any:
        return tensor.double()

    def has_arrived(self) -> bool:
        with self._on_device():
            return bool(self._event.query())

    def read(self) -> float | bytes:
        return float(self._arrived())

    def read_all(self) -> list[float]:
        numbers: list[float] = self._arrived().tolist()
        return numbers

    def _arrived(self) -> Any:
        with self._on_device():
            self._event.synchronize()
        return self._into

    @contextlib.contextmanager
    def _on_device(self) -> Iterator[None]:
        with devices.on(self._device), beside_captures():
            yield


class _CopyOfImage(_Copy):
    """The pixels of an image, on their way from a GPU."""

    __slots__ = ()

    @staticmethod
    def _converted(tensor: Any) -> Any:
        return tensor.contiguous()

    def read(self) -> bytes:
        return encode_png(self._arrived().numpy())


def _bin_on_gpu(values: Any, bins: int) -> _Copy:
    """Queue the counting of bins on the GPU; the result has the counts, the lowest and the highest value.

    `torch.histc` and boolean indexing would wait for the GPU.
    """
    torch = sys.modules["torch"]
    flat = values.detach().flatten().to(torch.float64 if values.dtype == torch.float64 else torch.float32)
    if not flat.numel():
        return _Copy(torch.zeros(bins + 2, device=flat.device))
    finite = flat.isfinite()
    low = torch.where(finite, flat, math.inf).min()
    high = torch.where(finite, flat, -math.inf).max()
    width = (high - low).clamp_min(torch.finfo(flat.dtype).tiny)
    places = torch.where(finite, (flat - low) / width * bins, 0).long().clamp_(0, bins - 1)
    counts = torch.zeros(bins, dtype=torch.float64, device=flat.device).scatter_add_(0, places, finite.double())
    return _Copy(torch.cat((counts, torch.stack((low, high)).double())))


# -- bins and pictures ---------------------------------------------------------------------


def _bin(values: Any, bins: int) -> tuple[list[float], list[float]]:
    import numpy  # weight: a rank that logs numbers only need not load it

    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() and values.dtype.itemsize < 4 else values  # bfloat16
    numbers: Any = numpy.asarray(values)
    if numbers.size and not (numpy.issubdtype(numbers.dtype, numpy.number) or numbers.dtype == bool):
        raise TypeError(f"a histogram takes numbers, not an array of {numbers.dtype}")
    if numpy.iscomplexobj(numbers):
        raise TypeError("a histogram takes real numbers, not complex ones")
    numbers = numbers.astype(numpy.float64).ravel()
    numbers = numbers[numpy.isfinite(numbers)]
    if not numbers.size:
        return [0.0] * bins, _edges(0.0, 0.0, bins)
    edges = _edges(float(numbers.min()), float(numbers.max()), bins)
    counts, _ = numpy.histogram(numbers, bins=edges)
    return [float(count) for count in counts], edges


def _edges(low: float, high: float, bins: int) -> list[float]:
    """Return the edges of bins of equal width; where all values are equal, they lie in bins around it."""
    if not low < high:
        margin = max(0.5, abs(low) / 1024)  # half of one is nothing beside large numbers
        low, high = (low - margin, low + margin) if math.isfinite(low) else (-0.5, 0.5)
    if math.isinf(high - low):
        return [low * (1 - place / bins) + high * (place / bins) for place in range(bins)] + [high]
    return [low + (high - low) * place / bins for place in range(bins)] + [high]


def _picture(value: Any) -> Picture | _CopyOfImage | None:
    """Return the PNG of a figure of matplotlib, a picture of PIL, or an array of uint8 [height, width(, channels)]."""
    if hasattr(value, "savefig"):
        target = io.BytesIO()
        value.savefig(target, format="png", bbox_inches="tight")
        return Picture(target.getvalue())
    if hasattr(value, "save") and hasattr(value, "mode") and hasattr(value, "getpixel"):
        target = io.BytesIO()
        value.save(target, format="PNG")
        return Picture(target.getvalue())
    shape = tuple(getattr(value, "shape", ()))
    if len(shape) not in (2, 3) or not str(getattr(value, "dtype", "")).endswith("uint8"):
        return None
    if not math.prod(shape) or (len(shape) == 3 and shape[-1] not in (1, 3, 4)):
        return None
    if getattr(value, "is_cuda", False):
        return _CopyOfImage(value)
    return encode_png(value.detach().cpu().numpy() if hasattr(value, "detach") else value)


_PNG_COLOURS = {1: 0, 3: 2, 4: 6}  # by channels: the colour type of PNG


def encode_png(pixels: Any) -> Picture:
    """Return an array of uint8, shape [height, width] or [height, width, channels] with 1, 3 or 4 channels, as PNG."""
    height, width = pixels.shape[:2]
    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    row = width * channels
    data = pixels.tobytes()
    # A byte before each row is its filter; 0 is none.
    rows = b"".join(b"\0" + data[start : start + row] for start in range(0, height * row, row))
    header = struct.pack(">IIBBBBB", width, height, 8, _PNG_COLOURS[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part)) for kind, part in parts
    )
    return Picture(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))
