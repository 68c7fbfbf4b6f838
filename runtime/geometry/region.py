"""Named shapes: `Extent` (names, sizes) and `Region` (the same over ranks of a base mesh, alias `Shape`).

A region selects ranks of the spawned mesh, and arranges them. It holds no values and no processes. Extent and Region
create each other, so they share this file.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from meshbook.runtime.formats import format_ranks
from meshbook.runtime.geometry.slices import NegativeNumber, OutOfRange, Point, Slice, natural, row_major_strides
from meshbook.runtime.geometry.splitting import SplitArgument, read_split

# Inside a class with a method called `slice` the builtin needs another name in annotations.
PythonSlice: TypeAlias = slice
Index: TypeAlias = int | slice

_WHOLE = slice(None)


class UnknownDimension(TypeError, ValueError, KeyError):
    """There is no dimension of this name. Programs expect each of these base classes, at different places."""

    __str__ = Exception.__str__  # a KeyError shows the repr of its text


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Extent(Mapping[str, int]):
    """Dimension names and sizes, in order, read as a mapping from name to size."""

    dims: tuple[tuple[str, ...], tuple[int, ...]]  # the names and the sizes

    def __init__(self, labels: Sequence[str], sizes: Sequence[int]) -> None:
        dims = _checked_labels(labels, len(sizes)), tuple(natural(size, "size") for size in sizes)
        object.__setattr__(self, "dims", dims)

    @classmethod
    def of(cls, /, **sizes: int) -> Extent:
        """`Extent.of(hosts=2, gpus=4)`."""
        return cls(tuple(sizes), tuple(sizes.values()))

    @property
    def labels(self) -> list[str]:
        """The names of the dimensions."""
        return list(self.dims[0])

    @property
    def sizes(self) -> list[int]:
        """The sizes of the dimensions."""
        return list(self.dims[1])

    @property
    def nelements(self) -> int:
        """The number of ranks; 1 without dimensions."""
        return math.prod(self.dims[1])

    @property
    def region(self) -> Region:
        """All of the extent, as a base mesh with ranks from 0."""
        return Region(self.labels, self._layout)

    def point(self, rank: int | None = None, /, **coordinates: int) -> Point:
        """Return the point of a rank, or of one coordinate per dimension.

        ValueError: the rank is past the end. IndexError: a coordinate is. KeyError: a dimension is missing or unknown.
        """
        if rank is None:
            if odd := sorted(set(coordinates).symmetric_difference(self.labels)):
                needed = f"a point needs exactly the dimensions {_listed(self.labels)}"
                raise KeyError(f"{needed}; missing or unknown: {_listed(odd)}")
            return Point(self._layout.nditem([coordinates[label] for label in self.labels]), self)
        if coordinates:
            raise TypeError("give a rank or coordinates, not both")
        return Point(rank, self)

    def __getitem__(self, label: str) -> int:
        labels, sizes = self.dims
        if label not in labels:
            raise UnknownDimension(f"unknown dimension {label!r}; the dimensions are {_listed(labels)}")
        return sizes[labels.index(label)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.dims[0])

    def __len__(self) -> int:
        return len(self.dims[0])

    def __eq__(self, other: object) -> bool:
        # Between extents the order of dimensions counts, as in the hash; a plain mapping only has items.
        if isinstance(other, Extent):
            return self.dims == other.dims
        return Mapping.__eq__(self, other)

    def __hash__(self) -> int:
        return hash(self.dims)

    def __repr__(self) -> str:
        return f"Extent({', '.join(f'{label}={size}' for label, size in self.items())})"

    @property
    def _layout(self) -> Slice:
        return Slice.new_row_major(self.sizes)


@dataclass(frozen=True)
class _Axis:
    label: str
    size: int
    stride: int


@dataclass(frozen=True, init=False)
class Region:
    """Ranks of a base mesh, arranged in named dimensions.

    Usually `ndslice` gives the ranks. A set of ranks that no strides describe is listed in `picked`, and then `ndslice`
    gives positions in that list. `picked` is always ascending: ranks keep their order in every operation.
    """

    _labels: tuple[str, ...]
    ndslice: Slice
    picked: tuple[int, ...] | None

    def __init__(self, labels: Sequence[str], slice: Slice, picked: Sequence[int] | None = None) -> None:  # noqa: A002
        object.__setattr__(self, "_labels", _checked_labels(labels, slice.ndim))
        object.__setattr__(self, "ndslice", slice)
        object.__setattr__(self, "picked", None if picked is None else tuple(picked))

    @staticmethod
    def unity() -> Region:
        """Return the region of one rank, 0, without dimensions."""
        return Region((), Slice(0, (), ()))

    @property
    def labels(self) -> list[str]:
        """The names of the dimensions."""
        return list(self._labels)

    @property
    def region(self) -> Region:
        """This region itself, so that it can be passed in place of a mesh."""
        return self

    @property
    def extent(self) -> Extent:
        """The names and sizes, without the ranks."""
        return Extent(self.labels, self.ndslice.sizes)

    @property
    def sizes(self) -> dict[str, int]:
        """Each dimension and its size."""
        return dict(self.extent)

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """Return the number of ranks, or the size of one dimension, or of several multiplied; KeyError: unknown."""
        if dim is None:
            return len(self)
        product = 1
        for label in [dim] if isinstance(dim, str) else dim:
            product *= self.extent[label]
        return product

    def ranks(self) -> tuple[int, ...]:
        """Return the base ranks, in row-major order of this region."""
        return tuple(self.ndslice) if self.picked is None else tuple(map(self.picked.__getitem__, self.ndslice))

    def contains(self, rank: int) -> bool:
        """Return whether this base rank is in the region."""
        return self._position(rank) is not None

    def point_of_base_rank(self, rank: int) -> Point:
        """Return the point of a base rank in *this* region; ValueError if it is not in it."""
        position = self._position(rank)
        if position is None:
            raise ValueError(f"rank {rank} is not in this mesh of {len(self)} ranks")
        return self.extent.point(position)

    def slice(self, /, **dims: Index) -> Region:
        """Return a part: an int removes its dimension, a slice keeps it. Indices count within this region.

        Slices behave as for a list: negative ends count from the end, ends past the end are cut off.

        UnknownDimension, a TypeError. IndexError: an index that is negative or out of range, a negative step, nothing
        left.
        """
        if unknown := [label for label in dims if label not in self.labels]:
            raise UnknownDimension(f"unknown dimension {_listed(unknown)}; the dimensions are {_listed(self.labels)}")
        offset = self.ndslice.offset
        kept: list[_Axis] = []
        for axis in self._axes():
            wanted = dims.get(axis.label, _WHOLE)
            if isinstance(wanted, slice):
                span = _span(axis, wanted)
                offset += span.start * axis.stride
                kept.append(_Axis(axis.label, len(span), axis.stride * span.step))
            else:
                offset += _index(axis, wanted) * axis.stride
        return self._rearranged(offset, kept)

    def split(self, /, **arguments: SplitArgument) -> Region:
        """Replace dimensions by several: `split(gpus=("row", "column"), row=2)`; one size may be open."""
        request = read_split(arguments, self.labels)
        new_labels = [name for label in self.labels for name in request.names.get(label, (label,))]
        _checked_labels(new_labels, len(new_labels))
        axes: list[_Axis] = []
        for axis in self._axes():
            names = request.names.get(axis.label, (axis.label,))
            sizes = request.sizes_in_place_of(axis.label, axis.size) if axis.label in request.names else (axis.size,)
            strides = [axis.stride * inner for inner in row_major_strides(sizes)]
            axes += map(_Axis, names, sizes, strides)
        return self._rearranged(self.ndslice.offset, axes)

    def flatten(self, name: str) -> Region:
        """Replace all dimensions by one, `name`; ValueError if the ranks have gaps."""
        sizes, strides = self.ndslice.sizes, self.ndslice.strides
        pairs = zip(sizes, strides, row_major_strides(sizes), strict=True)
        # A dimension of size 1 never uses its stride, so it cannot make a gap.
        if self.picked is not None or any(size != 1 and stride != dense for size, stride, dense in pairs):
            raise ValueError(f"cannot flatten sparse mesh: there are gaps between its ranks ({self.ndslice!r})")
        return Region((name,), Slice(self.ndslice.offset, (len(self),), (1,)))

    def rename(self, /, **names: str) -> Region:
        """Rename dimensions, all at once: `rename(gpus="workers")`; ValueError if one is unknown."""
        unknown = [label for label in names if label not in self.labels]
        if unknown:
            raise ValueError(f"cannot rename {_listed(unknown)}: the dimensions are {_listed(self.labels)}")
        return Region([names.get(label, label) for label in self.labels], self.ndslice, self.picked)

    def pick(self, ranks: Iterable[int], name: str | None = None) -> Region:
        """Return any subset of the base ranks, in rank order, as one dimension.

        Its name is `name`, else that of the only dimension here, else `ranks`. ValueError: a rank is not in this
        region. IndexError: no rank is left.
        """
        wanted = frozenset(ranks)
        chosen = [rank for rank in self.ranks() if rank in wanted]
        if len(chosen) < len(wanted):
            raise ValueError(f"not in this mesh: rank {', '.join(map(str, sorted(wanted.difference(chosen))))}")
        if not chosen:
            raise IndexError("no rank was selected: a mesh needs at least one")
        own_name = self.labels[0] if len(self.labels) == 1 else "ranks"
        return _over_ranks((name or own_name,), (len(chosen),), chosen)

    def at(self, label: str, index: int) -> Region:
        """Slice one dimension by an index."""
        return self.slice(**{label: operator.index(index)})

    def select(self, label: str, span: PythonSlice) -> Region:
        """Slice one dimension by a slice."""
        return self.slice(**{label: span})

    def index(self, /, **indices: int) -> Region:
        """Slice by indices only."""
        return self.slice(**{label: operator.index(index) for label, index in indices.items()})

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinates of a base rank in this region; ValueError if it is not in it."""
        return dict(self.point_of_base_rank(rank))

    def __repr__(self) -> str:
        labels = ", ".join(f'"{label}"' for label in self._labels)
        ranks = "" if self.picked is None else f", picked: {list(self.picked)}"
        return f"Shape {{ labels: [{labels}], slice: {self.ndslice!r}{ranks} }}"

    def __str__(self) -> str:
        dims = ",".join(f"{label}={size}" for label, size in self.extent.items())
        whole = self.picked is None and self.ndslice == Slice.new_row_major(self.ndslice.sizes)
        return f"{{{dims}}}" if whole else f"{{{dims}}} of ranks {format_ranks(self.ranks())}"

    def __len__(self) -> int:
        return len(self.ndslice)

    def _axes(self) -> list[_Axis]:
        return list(map(_Axis, self.labels, self.ndslice.sizes, self.ndslice.strides))

    def _position(self, rank: int) -> int | None:
        if self.picked is None:
            return self.ndslice.index(rank) if rank in self.ndslice else None
        position = bisect_left(self.picked, rank)
        return position if position < len(self.picked) and self.picked[position] == rank else None

    def _rearranged(self, offset: int, axes: Sequence[_Axis]) -> Region:
        labels = [axis.label for axis in axes]
        sizes = [axis.size for axis in axes]
        positions = Slice(offset, sizes, [axis.stride for axis in axes])
        if self.picked is None:
            return Region(labels, positions)
        return _over_ranks(labels, sizes, [self.picked[position] for position in positions])


Shape = Region


def _over_ranks(labels: Sequence[str], sizes: Sequence[int], ranks: Sequence[int]) -> Region:
    # Prefer strides, so that the same ranks make the same region however they were reached.
    strided = Slice.through(sizes, ranks)
    return Region(labels, strided) if strided else Region(labels, Slice.new_row_major(sizes), ranks)


def _span(axis: _Axis, wanted: PythonSlice) -> range:
    span = range(*wanted.indices(axis.size))
    if span.step < 0:
        raise IndexError(f"{axis.label}={_written(wanted)}: a mesh cannot be sliced with a negative step")
    if not span:
        raise IndexError(f"{axis.label}={_written(wanted)} selects nothing: the size of {axis.label!r} is {axis.size}")
    return span


def _index(axis: _Axis, wanted: int) -> int:
    try:
        index = operator.index(wanted)
    except TypeError:
        raise TypeError(f"{axis.label}={wanted!r}: expected an integer or a slice") from None
    if not 0 <= index < axis.size:
        error = NegativeNumber if index < 0 else OutOfRange
        raise error(f"{axis.label}={index} is out of range: the indices are 0 to {axis.size - 1}")
    return index


def _written(wanted: PythonSlice) -> str:
    ends = f"{'' if wanted.start is None else wanted.start}:{'' if wanted.stop is None else wanted.stop}"
    return ends if wanted.step is None else f"{ends}:{wanted.step}"


def _checked_labels(labels: Sequence[str], count: int) -> tuple[str, ...]:
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise TypeError(f"dimension names must be a list of strings, not {labels!r}")
    if len(labels) != count:
        raise ValueError(f"{len(labels)} dimension names for {count} sizes: there must be one name per size")
    for position, label in enumerate(labels):
        if label in labels[:position]:
            raise ValueError(f"Duplicate dimension name {label!r}")
    return tuple(labels)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


SCALAR = Extent((), ())  # no dimensions, one rank
