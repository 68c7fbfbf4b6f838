"""`monarch._src.actor`."""

from meshbook.monarch.modules import AliasModule

AliasModule.adopt(__name__)
del AliasModule
