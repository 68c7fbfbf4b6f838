"""`monarch._src.actor.returns_future`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.deferred import returns_future as returns_future

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
