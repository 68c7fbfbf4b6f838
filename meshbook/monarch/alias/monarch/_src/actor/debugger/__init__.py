"""`monarch._src.actor.debugger`."""

from meshbook.monarch.modules import AliasModule

AliasModule.adopt(__name__)
del AliasModule
