"""`monarch._src.actor.host_mesh`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.hosts.session import this_host as this_host
from meshbook.runtime.hosts.session import this_proc as this_proc
from meshbook.runtime.mesh.commands import BootstrapCommand as BootstrapCommand
from meshbook.runtime.mesh.commands import default_bootstrap_cmd as default_bootstrap_cmd
from meshbook.runtime.mesh.hosts import HostMesh as HostMesh

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
