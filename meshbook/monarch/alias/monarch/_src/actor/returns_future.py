"""`monarch._src.actor.returns_future`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.deferred import returns_future as returns_future

__path__: list[str] = []  # a package, as meshbook.monarch.modules has the reason
AliasModule.adopt(__name__)
del AliasModule
