"""`monarch._rust_bindings`: private to Monarch, but the only place that some errors are imported from."""

from meshbook.monarch.modules import AliasModule

AliasModule.adopt(__name__)
del AliasModule
