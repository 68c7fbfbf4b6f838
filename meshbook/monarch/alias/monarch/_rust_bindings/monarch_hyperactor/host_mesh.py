"""`monarch._rust_bindings.monarch_hyperactor.host_mesh`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.mesh.commands import BootstrapCommand as BootstrapCommand
from meshbook.runtime.mesh.hosts import HostMesh as HostMesh

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
