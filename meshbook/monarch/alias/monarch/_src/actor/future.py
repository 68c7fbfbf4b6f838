"""`monarch._src.actor.future`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.future import Future as Future

__path__: list[str] = []  # a package, as meshbook.monarch.modules has the reason
AliasModule.adopt(__name__)
del AliasModule
