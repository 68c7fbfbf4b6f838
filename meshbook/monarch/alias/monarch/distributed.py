"""`monarch.distributed`: meshes of the global view."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.sharded_mesh import Mesh as Mesh

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
