"""`ValueMesh`: one value per rank of a called mesh, with the mesh's shape. Values are decoded on first access.

Equal neighbours are pickled once, and held once unless they are decoded lazily: 10,000 times None takes a few bytes.
Values that are costly or unusual to compare are not compared.
"""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, SupportsIndex, TypeVar

from meshbook.runtime.geometry import Extent, MeshTrait, Point, Region

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class LazyValues(Protocol[T_co]):
    """Values by index; each is a callable that returns the value."""

    def __getitem__(self, index: int, /) -> Callable[[], T_co]: ...


class ValueMesh(MeshTrait, Generic[T]):
    """Immutable values with a shape. Points count from zero within the mesh that was called."""

    _region: Region
    # Indexed by the ranks of the region as it was called (`_base`); slices share them.
    _cells: LazyValues[T]
    _base: Sequence[int] | None

    def __init__(self, shape: Extent | Region, values: Iterable[T]) -> None:
        """Hold these values in rank order; ValueError if their number differs from the number of ranks of the shape."""
        held = [_Value(value) for value in values]
        if len(held) != len(shape.region):
            raise ValueError(f"expected {len(shape.region)} values for {dict(shape.region.extent)}, got {len(held)}")
        self._region, self._cells, self._base = shape.region, held, None

    @classmethod
    def of_cells(cls, region: Region, cells: LazyValues[T], base: Sequence[int] | None = None) -> ValueMesh[T]:
        """Return a value mesh whose values are decoded when they are first read (for the runtime)."""
        made = cls.__new__(cls)
        made._region, made._cells, made._base = region, cells, base
        return made

    @functools.cached_property
    def _places(self) -> dict[int, int]:
        base = self._base if self._base is not None else self._region.ranks()
        return {rank: index for index, rank in enumerate(base)}

    @classmethod
    def of(cls, extent: Extent, values: Iterable[T]) -> ValueMesh[T]:
        """Return a value mesh of these values, in rank order; ValueError if their number differs from the extent's."""
        held = list(values)
        if len(held) != extent.nelements:
            raise ValueError(f"expected {extent.nelements} values for {dict(extent)}, got {len(held)}")
        return cls._of_runs(extent, *runs_of(held))

    @classmethod
    def _of_runs(cls, extent: Extent, values: Sequence[T], counts: Sequence[int]) -> ValueMesh[T]:
        # If there are as many values as ranks, the counts carry no information and are not sent.
        cells = [_Value(value) for value in values]
        return cls.of_cells(extent.region, cells if len(cells) == extent.nelements else _RepeatedValues(cells, counts))

    @classmethod
    def from_indexed(cls, shape: Extent | Region, pairs: Iterable[tuple[int, T]]) -> ValueMesh[T]:
        """Return a value mesh from (rank, value) pairs in any order. The last value of a rank wins.

        Raises ValueError if a rank is missing or out of range.
        """
        found = dict(pairs)
        extent = shape.region.extent
        size = extent.nelements
        if odd := [rank for rank in found if not 0 <= rank < size]:
            raise ValueError(f"rank {odd[0]} is out of range: the shape has {size} ranks")
        if len(found) != size:
            raise ValueError(f"expected {size} ranks, but the input contains {len(found)}")
        return cls.of(extent, (found[rank] for rank in range(size)))

    @property
    def region(self) -> Region:
        return self._region

    def _with_region(self, region: Region) -> ValueMesh[T]:
        return ValueMesh.of_cells(region, self._cells, tuple(self._places))

    def _at(self, base_rank: int) -> T:
        return self._cells[self._places[base_rank]]()

    def values(self) -> list[T]:
        """Return the values in rank order."""
        return [self._at(rank) for rank in self._region.ranks()]

    def items(self) -> Iterator[tuple[Point, T]]:
        """Return (point, value) pairs in rank order."""
        extent = self.extent
        return ((extent.point(index), self._at(rank)) for index, rank in enumerate(self._region.ranks()))

    def __iter__(self) -> Iterator[tuple[Point, T]]:
        return self.items()

    def get(self, rank: int) -> T:
        """Return the value of one rank of this mesh. ValueError if it is out of range, TypeError if not an integer."""
        if not isinstance(rank, SupportsIndex):
            raise TypeError(f"a rank must be an integer, not {rank!r}; use item(gpus=0) for coordinates")
        if not 0 <= rank < len(self):
            raise ValueError(f"rank {rank} is out of range: this value mesh has {len(self)} ranks")
        return self._at(self._region.ranks()[rank])

    def item(self, **coordinates: int) -> T:
        """Return the value at one point. All dimensions are required: KeyError for a missing or an unknown one.

        Raises IndexError if a coordinate is out of range, TypeError if it is not an integer.
        """
        wanted, known = set(coordinates), set(self.extent.labels)
        if wanted != known:
            wrong = ", ".join(sorted(wanted ^ known))
            raise KeyError(f"item() needs each dimension once; missing or unknown: {wrong}")
        one = self.region.slice(**coordinates)
        if one.labels:
            raise TypeError(f"item() takes an integer for each dimension, not {coordinates}; slice() takes slices")
        return self._at(one.ranks()[0])

    def __repr__(self) -> str:
        shown = ", ".join(f"{point}: {value!r}" for point, value in list(self.items())[:8])
        more = f", … {len(self)} in all" if len(self) > 8 else ""
        return f"ValueMesh({shown}{more})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueMesh):
            return NotImplemented
        return self.extent == other.extent and list(self.values()) == list(other.values())

    __hash__ = None  # type: ignore[assignment]

    if not TYPE_CHECKING:  # type checkers report missing attributes themselves

        def __getattr__(self, name: str) -> NoReturn:
            hint = ": use values() for all values, get(0) for rank 0" if name == "value" else ""
            raise AttributeError(f"'ValueMesh' object has no attribute {name!r}{hint}", name=name, obj=self)

    def __reduce__(self) -> tuple[Any, ...]:
        values, counts = runs_of(self.values())
        return ValueMesh._of_runs, (self.extent, values, counts if len(values) < len(self) else ())


class _Value(Generic[T]):
    """A value that is already decoded."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __call__(self) -> T:
        return self.value


class _RepeatedValues(Generic[T]):
    """Values that each repeat for a number of neighbouring indices."""

    __slots__ = ("_cells", "_ends")

    def __init__(self, cells: Sequence[_Value[T]], counts: Iterable[int]) -> None:
        self._cells = cells
        self._ends = list(itertools.accumulate(counts))

    def __getitem__(self, index: int) -> _Value[T]:
        return self._cells[bisect_right(self._ends, index)]


class LazyValue(Generic[T]):
    """A value that is decoded on first access; a decoding error is kept and raised each time."""

    __slots__ = ("_decode", "_error", "_value")

    def __init__(self, decode: Callable[[], T]) -> None:
        self._decode: Callable[[], T] | None = decode
        self._error: Exception | None = None

    def __call__(self) -> T:
        # Two threads may both decode: the same bytes give equal values, so no lock is taken.
        if (decode := self._decode) is not None:
            try:
                self._value = decode()
            except Exception as error:
                self._error = error
            self._decode = None
        if self._error is not None:
            raise self._error
        return self._value


MOST_ITEMS = 16  # of a tuple whose items are compared
MOST_DEPTH = 4  # of nested tuples; beyond that, comparing costs more than it saves


def runs_of(values: Iterable[T]) -> tuple[list[T], list[int]]:
    """Return the first value of each run of equal neighbours, and the lengths of the runs."""
    kept: list[T] = []
    counts: list[int] = []
    for value in values:
        if kept and are_same(kept[-1], value):
            counts[-1] += 1
        else:
            kept.append(value)
            counts.append(1)
    return kept, counts


def are_same(one: object, other: object, depth: int = MOST_DEPTH) -> bool:
    """Return whether one value can replace the other without a visible difference.

    Only plain numbers, strings and tuples of them are compared. Any other object, above all a tensor or an array,
    equals only itself. 1, 1.0 and True differ; so do 0.0 and -0.0, and two NaN.
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, float) and isinstance(other, float):
        return type(one) is float and one == other and math.copysign(1.0, one) == math.copysign(1.0, other)
    if type(one) in (int, str, bytes):
        return one == other
    if type(one) is tuple and type(other) is tuple:
        small = len(one) == len(other) <= MOST_ITEMS and depth > 0
        return small and all(are_same(a, b, depth - 1) for a, b in zip(one, other, strict=True))
    return False
