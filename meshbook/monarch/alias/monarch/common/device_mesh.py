"""`monarch.common.device_mesh`: the ranks that tensors are on."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.device_mesh import DeviceMesh as DeviceMesh
from meshbook.runtime.tensor.device_mesh import RemoteProcessGroup as RemoteProcessGroup
from meshbook.runtime.tensor.device_mesh import get_active_mesh as get_active_mesh
from meshbook.runtime.tensor.device_mesh import no_mesh as no_mesh
from meshbook.runtime.tensor.trees import slice_mesh as slice_mesh
from meshbook.runtime.tensor.trees import to_mesh as to_mesh

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
