"""`monarch._rust_bindings.monarch_hyperactor`."""

from meshbook.monarch.modules import AliasModule

AliasModule.adopt(__name__)
del AliasModule
