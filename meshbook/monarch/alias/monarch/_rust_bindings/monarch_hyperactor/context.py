"""`monarch._rust_bindings.monarch_hyperactor.context`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.context import Instance as Instance

__path__: list[str] = []  # a package, as meshbook.monarch.modules has the reason
AliasModule.adopt(__name__)
del AliasModule
