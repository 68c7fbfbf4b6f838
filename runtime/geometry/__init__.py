"""The algebra of meshes: extents, points, slices, regions, and the mixin that gives them to every mesh.

Numbers and names only: nothing here knows of processes, actors or Jupyter. One subject a file: `slices` maps
positions to ranks, `point` is one place, `region` is a shape over the ranks of a base mesh, `splitting` is
the arithmetic of `split`, `mesh_trait` hands a region's methods to whatever has one, `ranges` writes ranks for people.
"""

from meshbook.runtime.geometry.mesh_trait import MeshTrait
from meshbook.runtime.geometry.point import Point
from meshbook.runtime.geometry.region import Extent, Region, Shape
from meshbook.runtime.geometry.slices import NDSlice, Slice

__all__ = ["Extent", "MeshTrait", "NDSlice", "Point", "Region", "Shape", "Slice"]
