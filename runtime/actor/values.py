"""`ValueMesh`: one value per rank of a called mesh, with the mesh's shape. Values are decoded on first access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from meshbook.runtime.geometry import Extent, MeshTrait, Point, Region

T = TypeVar("T")


class ValueMesh(MeshTrait, Generic[T]):
    """Immutable values with a shape; points count from zero within the mesh that was called."""

    def __init__(self, region: Region, cells: Sequence[Callable[[], T]], base: Sequence[int] | None = None) -> None:
        # `cells` are indexed by the ranks of the region as it was called; slices share them.
        self._region = region
        self._cells = cells
        self._places = {rank: index for index, rank in enumerate(base if base is not None else region.ranks())}

    @classmethod
    def of(cls, extent: Extent, values: Iterable[T]) -> ValueMesh[T]:
        """A value mesh of these values, in rank order; ValueError where their number is not the extent's."""
        held = list(values)
        if len(held) != extent.nelements:
            raise ValueError(f"expected {extent.nelements} values for {dict(extent)}, got {len(held)}")
        return cls(extent.region, [_Held(value) for value in held])

    @classmethod
    def from_indexed(cls, shape: Extent, pairs: Iterable[tuple[int, T]]) -> ValueMesh[T]:
        """From (rank, value) pairs in any order: the last one of a rank wins; ValueError where one is missing."""
        found = dict(pairs)
        present = [found[rank] for rank in range(shape.nelements) if rank in found]
        if len(present) != shape.nelements:
            raise ValueError(f"expected {shape.nelements} ranks, the pairs contain {len(present)}")
        return cls.of(shape, present)

    @property
    def region(self) -> Region:
        return self._region

    def _with_region(self, region: Region) -> ValueMesh[T]:
        return ValueMesh(region, self._cells, tuple(self._places))

    def _at(self, base_rank: int) -> T:
        return self._cells[self._places[base_rank]]()

    def values(self) -> Iterator[T]:
        """The values in rank order."""
        return (self._at(rank) for rank in self._region.ranks())

    def items(self) -> Iterator[tuple[Point, T]]:
        """(point, value) pairs in rank order."""
        extent = self.extent
        return ((extent.point(index), self._at(rank)) for index, rank in enumerate(self._region.ranks()))

    def __iter__(self) -> Iterator[tuple[Point, T]]:
        return self.items()

    def get(self, rank: int) -> T:
        """The value of one rank of this mesh; ValueError where it is out of range."""
        if not 0 <= rank < len(self):
            raise ValueError(f"rank {rank} is out of range: this value mesh has {len(self)} ranks")
        return self._at(self._region.ranks()[rank])

    def item(self, **coordinates: int) -> T:
        """The value at one point; all dimensions are required (KeyError for a missing or an unknown one)."""
        wanted, known = set(coordinates), set(self.extent.labels)
        if wanted != known:
            wrong = ", ".join(sorted(wanted ^ known))
            raise KeyError(f"item() needs each dimension once; missing or unknown: {wrong}")
        return self.get(self.extent.point(**coordinates).rank)

    def __repr__(self) -> str:
        shown = ", ".join(f"{point}: {value!r}" for point, value in list(self.items())[:8])
        more = f", … {len(self)} in all" if len(self) > 8 else ""
        return f"ValueMesh({shown}{more})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueMesh):
            return NotImplemented
        return self.extent == other.extent and list(self.values()) == list(other.values())

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return ValueMesh.of, (self.extent, list(self.values()))


class _Held(Generic[T]):
    """A value that is here already."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __call__(self) -> T:
        return self.value


class Once(Generic[T]):
    """A value that is decoded when first asked for; an error stays an error."""

    __slots__ = ("_decode", "_error", "_value")

    def __init__(self, decode: Callable[[], T]) -> None:
        self._decode: Callable[[], T] | None = decode
        self._error: Exception | None = None

    def __call__(self) -> T:
        # Two threads may both decode: the same bytes give equal values, so no lock is taken for that.
        if (decode := self._decode) is not None:
            try:
                self._value = decode()
            except Exception as error:
                self._error = error
            self._decode = None
        if self._error is not None:
            raise self._error
        return self._value
