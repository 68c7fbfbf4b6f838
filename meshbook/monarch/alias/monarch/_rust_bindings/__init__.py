"""`monarch._rust_bindings`: private to Monarch, but programs can import some errors only from here."""

from meshbook.monarch.modules import AliasModule

AliasModule.adopt(__name__)
del AliasModule
