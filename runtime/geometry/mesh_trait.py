"""`MeshTrait`: slice, split, flatten, rename and sizes for every class that has a region.

Host, process, actor and value meshes inherit it, so that the algebra is the same on all. Each class defines what its
slice *does*; the region does the arithmetic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

from meshbook.runtime.geometry.region import Extent, Index, Region
from meshbook.runtime.geometry.slices import Slice
from meshbook.runtime.geometry.splitting import SplitArgument


class MeshTrait(ABC):
    """An n-dimensional array of things, with named dimensions. Implement `region` and `_with_region`."""

    @property
    @abstractmethod
    def region(self) -> Region:
        """The ranks of the base mesh that this mesh has, and their arrangement."""

    @abstractmethod
    def _with_region(self, region: Region) -> Self:
        """Return the same mesh through another region of the same base."""

    def slice(self, /, **dims: Index) -> Self:
        """Return a part of the mesh: an int removes its dimension, a slice keeps it. Indices count within this mesh.

        TypeError: unknown dimension. IndexError: out of range, a negative index, nothing left.
        """
        return self._with_region(self.region.slice(**dims))

    def split(self, /, **arguments: SplitArgument) -> Self:
        """Replace dimensions by several: `split(gpus=("row", "column"), row=2)`."""
        return self._with_region(self.region.split(**arguments))

    def flatten(self, name: str) -> Self:
        """Replace all dimensions by one, `name`; ValueError if the ranks have gaps."""
        return self._with_region(self.region.flatten(name))

    def rename(self, /, **names: str) -> Self:
        """Rename dimensions: `rename(gpus="workers")`."""
        return self._with_region(self.region.rename(**names))

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """Return the number of ranks, or the size of one dimension, or of several multiplied; KeyError: unknown."""
        return self.region.size(dim)

    @property
    def sizes(self) -> dict[str, int]:
        """Each dimension and its size."""
        return self.region.sizes

    @property
    def _labels(self) -> list[str]:
        """The names of the dimensions, under the name that Monarch's programs use."""
        return self.region.labels

    @property
    def _ndslice(self) -> Slice:
        """The arrangement of the ranks, under the name that Monarch's programs use."""
        return self.region.ndslice

    @property
    def extent(self) -> Extent:
        """The names and sizes of the dimensions."""
        return self.region.extent

    def __len__(self) -> int:
        return len(self.region)
