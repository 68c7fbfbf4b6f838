"""`monarch.mesh_controller`: the tensor engine of a process mesh."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.device_mesh import spawn_tensor_engine as spawn_tensor_engine
from meshbook.runtime.tensor.failures import RemoteException as RemoteException

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
