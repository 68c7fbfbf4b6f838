"""`monarch._rust_bindings.monarch_hyperactor.proc_mesh`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.mesh.procs import ProcMesh as ProcMesh

__path__: list[str] = []  # a package, as meshbook.monarch.modules has the reason
AliasModule.adopt(__name__)
del AliasModule
