"""`monarch._src.actor.future`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.future import Future as Future

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
