"""`monarch._src`: paths that Monarch's programs import from, beside the public ones."""

from meshbook.monarch.modules import AliasModule

AliasModule.adopt(__name__)
del AliasModule
