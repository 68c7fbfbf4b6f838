"""`monarch.distributed`: none of its names is part of this version; importing one raises an error that says so."""

from meshbook.monarch.modules import AliasModule

__path__: list[str] = []  # a package, as meshbook.monarch.modules has the reason
AliasModule.adopt(__name__)
del AliasModule
