"""`monarch.distributed`: no name of it is part of this version; each says so when it is imported."""

from meshbook.monarch.modules import AliasModule

__path__: list[str] = []  # a package, as meshbook.monarch.modules has the reason
AliasModule.adopt(__name__)
del AliasModule
