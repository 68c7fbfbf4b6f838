"""Strided maps from n-dimensional coordinates to ranks (`Slice`, also called `NDSlice`), and one place: `Point`.

Not for names: dimensions get their labels in `region`. A slice lists no ranks: 80,000 cost no more than 8. A point has
its extent, but no reference to the base mesh.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from meshbook.runtime.geometry.region import Extent


@dataclass(frozen=True, init=False, repr=False)
class Slice:
    """Ranks `offset + sum(coordinate * stride)`, read in row-major order of the coordinates.

    Three terms differ: a *rank* is a value of the slice, a *position* counts its elements from 0, and *coordinates* are
    one number per dimension. A negative number is an OverflowError, and a TypeError as well.
    """

    offset: int
    _sizes: tuple[int, ...]
    _strides: tuple[int, ...]

    def __init__(self, offset: int, sizes: Sequence[int], strides: Sequence[int]) -> None:
        if len(sizes) != len(strides):
            raise ValueError(f"{len(sizes)} sizes but {len(strides)} strides: there must be one stride per size")
        object.__setattr__(self, "offset", natural(offset, "offset"))
        object.__setattr__(self, "_sizes", tuple(natural(size, "size") for size in sizes))
        object.__setattr__(self, "_strides", tuple(natural(stride, "stride") for stride in strides))
        self._refuse_overlap()

    @staticmethod
    def new_row_major(sizes: Sequence[int]) -> Slice:
        """Return the dense slice of these sizes from rank 0; the last dimension runs fastest."""
        return Slice(0, sizes, row_major_strides(sizes))

    @staticmethod
    def from_list(ranks: Sequence[int]) -> list[Slice]:
        """Return one-dimensional slices that together give these ranks, in this order: evenly spaced runs."""
        slices: list[Slice] = []
        start = 0
        while start < len(ranks):
            length = _length_of_run(ranks[start:])
            stride = ranks[start + 1] - ranks[start] if length > 1 else 1
            slices.append(Slice(ranks[start], [length], [stride]))
            start += length
        return slices

    @staticmethod
    def through(sizes: Sequence[int], ranks: Sequence[int]) -> Slice | None:
        """Return the slice of these sizes with exactly these (ascending) ranks, or None if no strides give them."""
        steps = row_major_strides(sizes)
        strides = [ranks[step] - ranks[0] if size > 1 else step for size, step in zip(sizes, steps, strict=True)]
        if _expand(ranks[0], sizes, strides) != list(ranks):
            return None
        return Slice(ranks[0], sizes, strides)

    @property
    def sizes(self) -> list[int]:
        """The size of each dimension."""
        return list(self._sizes)

    @property
    def strides(self) -> list[int]:
        """The stride of each dimension."""
        return list(self._strides)

    @property
    def ndim(self) -> int:
        """How many dimensions there are."""
        return len(self._sizes)

    def coordinates(self, rank: int) -> list[int]:
        """Return the coordinates of `rank`; ValueError if it is not in the slice."""
        found = self._find(natural(rank, "rank"))
        if found is None:
            raise ValueError(f"rank {rank} is not in {self!r}")
        return list(found)

    def index(self, where: int | Sequence[int]) -> int:
        """Return the position of a rank (ValueError if outside) or of coordinates (IndexError if outside)."""
        coordinates = where if isinstance(where, Sequence) else self.coordinates(where)
        return self._weigh(coordinates, row_major_strides(self._sizes))

    def nditem(self, coordinates: Sequence[int]) -> int:
        """Return the rank at these coordinates; IndexError if one is out of range, ValueError if too few or many."""
        return self.offset + self._weigh(coordinates, self._strides)

    def get(self, position: int) -> int:
        """Return the rank at this position; IndexError if it is past the end."""
        if natural(position, "position") >= len(self):
            raise IndexError(f"position {position} is out of range: {self!r} has {len(self)} elements")
        return self.offset + self._weigh(unravel(position, self._sizes), self._strides)

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> tuple[int, ...]: ...
    def __getitem__(self, position: int | slice) -> int | tuple[int, ...]:
        if isinstance(position, slice):
            return tuple(self.get(each) for each in range(*position.indices(len(self))))
        return self.get(position)

    def __len__(self) -> int:
        return math.prod(self._sizes)

    def __iter__(self) -> Iterator[int]:
        return iter(_expand(self.offset, self._sizes, self._strides))

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and self._find(rank) is not None

    def __repr__(self) -> str:
        return f"Slice {{ offset: {self.offset}, sizes: {self.sizes}, strides: {self.strides} }}"

    def _find(self, rank: int) -> tuple[int, ...] | None:
        # From the largest stride down: nothing overlaps, so a division leaves what the smaller strides reach.
        found = [0] * self.ndim
        rest = rank - self.offset
        for axis in reversed(self._long_axes()):
            found[axis], rest = divmod(rest, self._strides[axis])
            if not 0 <= found[axis] < self._sizes[axis]:
                return None
        return tuple(found) if rest == 0 and len(self) else None

    def _weigh(self, coordinates: Sequence[int], strides: Sequence[int]) -> int:
        if len(coordinates) != self.ndim:
            raise ValueError(f"{len(coordinates)} coordinates for {self.ndim} dimensions")
        for coordinate, size in zip(coordinates, self._sizes, strict=True):
            if natural(coordinate, "coordinate") >= size:
                raise IndexError(f"coordinate {coordinate} is out of range for size {size}")
        return sum(map(operator.mul, coordinates, strides))

    def _long_axes(self) -> list[int]:
        """Return the axes of size over 1, smallest stride first; the others never use their stride."""
        return sorted((axis for axis in range(self.ndim) if self._sizes[axis] > 1), key=self._strides.__getitem__)

    def _refuse_overlap(self) -> None:
        # A rank at two places has no unique coordinates. Strides beyond the reach of the smaller ones prevent it.
        reach = 0
        for axis in self._long_axes():
            if self._strides[axis] <= reach:
                raise ValueError(f"{self!r} has ranks at more than one place: the strides overlap")
            reach += (self._sizes[axis] - 1) * self._strides[axis]


NDSlice = Slice


class NegativeNumber(IndexError, OverflowError, TypeError):
    """A negative number where a count or position is needed. Programs expect each of these base classes."""


class OutOfRange(IndexError, ValueError):
    """An index past the end. Programs expect each of these base classes, at different places."""


def natural(number: int, meaning: str) -> int:
    """Return `number` as a plain int of 0 or more; TypeError if it is no integer, NegativeNumber if negative."""
    try:
        value = operator.index(number)
    except TypeError:
        raise TypeError(f"{meaning} must be an integer, not {type(number).__name__}") from None
    if value < 0:
        raise NegativeNumber(f"{meaning} must not be negative, but is {value}")
    return value


def row_major_strides(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense array whose last dimension runs fastest."""
    products = list(accumulate(reversed(sizes), operator.mul, initial=1))
    return tuple(reversed(products[:-1]))


def unravel(position: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the coordinates of a position in a dense array whose last dimension runs fastest."""
    coordinates = []
    for size in reversed(sizes):
        position, coordinate = divmod(position, size)
        coordinates.append(coordinate)
    return tuple(reversed(coordinates))


def _expand(offset: int, sizes: Sequence[int], strides: Sequence[int]) -> list[int]:
    ranks = [offset]
    for size, stride in zip(sizes, strides, strict=True):
        ranks = [rank + index * stride for rank in ranks for index in range(size)]
    return ranks


def _length_of_run(ranks: Sequence[int]) -> int:
    """Return how many of the first ranks ascend in even steps."""
    if len(ranks) < 2 or ranks[1] <= ranks[0]:
        return 1
    stride = ranks[1] - ranks[0]
    length = 2
    while length < len(ranks) and ranks[length] - ranks[length - 1] == stride:
        length += 1
    return length


@dataclass(frozen=True, eq=False, repr=False)
class Point(Mapping[str, int]):
    """A rank of an extent, read as a mapping from dimension to coordinate.

    The point of an extent without dimensions is `{}`, of rank 0. A rank past the end is a ValueError.
    """

    rank: int
    extent: Extent

    def __post_init__(self) -> None:
        if natural(self.rank, "rank") >= self.extent.nelements:
            raise ValueError(f"rank {self.rank} is out of range: {self.extent!r} has {self.extent.nelements} ranks")

    def size(self, label: str) -> int:
        """Return the size of the dimension `label`; UnknownDimension, a ValueError, if there is none of that name."""
        return self.extent[label]

    @property
    def coordinates(self) -> tuple[int, ...]:
        """One coordinate per dimension, in the order of the extent's labels."""
        return unravel(self.rank, self.extent.sizes)

    def __getitem__(self, label: str) -> int:
        self.extent[label]  # UnknownDimension if there is none of that name
        return dict(zip(self.extent, self.coordinates, strict=True))[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.extent)

    def __len__(self) -> int:
        return len(self.extent)

    def __eq__(self, other: object) -> bool:
        # Two points are equal as the same place of the same extent; against any other mapping only the items count.
        if isinstance(other, Point):
            return self.rank == other.rank and self.extent == other.extent
        return Mapping.__eq__(self, other)

    def __hash__(self) -> int:
        return hash((self.rank, self.extent))

    def __repr__(self) -> str:
        places = zip(self.extent.labels, self.coordinates, self.extent.sizes, strict=True)
        return "{" + ", ".join(f"{label!r}: {coordinate}/{size}" for label, coordinate, size in places) + "}"
