"""`monarch._src.actor.shape`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.geometry import Extent as Extent
from meshbook.runtime.geometry import MeshTrait as MeshTrait
from meshbook.runtime.geometry import NDSlice as NDSlice
from meshbook.runtime.geometry import Point as Point
from meshbook.runtime.geometry import Region as Region
from meshbook.runtime.geometry import Shape as Shape
from meshbook.runtime.geometry import Slice as Slice

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
