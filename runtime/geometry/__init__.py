"""The algebra of meshes: extents, points, slices, regions, and the mixin that gives them to every mesh.

Numbers and names only: this package does not depend on processes, actors or Jupyter. One subject a file: `slices` maps
positions to ranks, `region` is a shape over the ranks of a base mesh, `splitting` is the arithmetic of `split`,
`mesh_trait` adds a region's methods to every class with a region.
"""

from meshbook.runtime.geometry.mesh_trait import MeshTrait
from meshbook.runtime.geometry.region import SCALAR, Extent, Region, Shape
from meshbook.runtime.geometry.slices import NDSlice, Point, Slice

__all__ = ["SCALAR", "Extent", "MeshTrait", "NDSlice", "Point", "Region", "Shape", "Slice"]
