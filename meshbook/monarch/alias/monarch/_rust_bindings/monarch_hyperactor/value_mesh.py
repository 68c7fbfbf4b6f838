"""`monarch._rust_bindings.monarch_hyperactor.value_mesh`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.values import ValueMesh as ValueMesh

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
