"""One place in a mesh: `Point`. It has its extent, but no reference to the base mesh."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshbook.runtime.geometry.slices import natural, unravel

if TYPE_CHECKING:  # An extent makes points, so the import at run time goes the other way.
    from meshbook.runtime.geometry.region import Extent


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
