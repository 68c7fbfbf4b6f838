"""`monarch._src.actor.concurrent`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.endpoint import concurrent_endpoint as concurrent_endpoint

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
