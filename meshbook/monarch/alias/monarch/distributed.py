"""`monarch.distributed`: none of its names is part of this version; importing one raises an error that says so."""

from meshbook.monarch.modules import AliasModule

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
