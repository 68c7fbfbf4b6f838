"""`monarch._src.actor.proc_mesh`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.hosts.controllers import get_or_spawn_controller as get_or_spawn_controller
from meshbook.runtime.mesh.procs import ProcMesh as ProcMesh

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
