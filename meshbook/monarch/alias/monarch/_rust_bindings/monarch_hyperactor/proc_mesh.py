"""`monarch._rust_bindings.monarch_hyperactor.proc_mesh`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.mesh.procs import ProcMesh as ProcMesh

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
