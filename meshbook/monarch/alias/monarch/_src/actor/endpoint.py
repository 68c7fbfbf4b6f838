"""`monarch._src.actor.endpoint`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.endpoint import Endpoint as Endpoint
from meshbook.runtime.actor.endpoint import endpoint as endpoint

__path__: list[str] = []  # a package, as meshbook.monarch.modules has the reason
AliasModule.adopt(__name__)
del AliasModule
