"""`monarch._src.actor.endpoint`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.endpoint import Endpoint as Endpoint
from meshbook.runtime.actor.endpoint import endpoint as endpoint

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
