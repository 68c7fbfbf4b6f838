"""`monarch._rust_bindings.monarch_hyperactor.context`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.context import Instance as Instance

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
