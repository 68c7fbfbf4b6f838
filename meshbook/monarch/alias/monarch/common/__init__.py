"""`monarch.common`: modules of the tensor engine; each has its names."""

from meshbook.monarch.modules import AliasModule

AliasModule.adopt(__name__)
del AliasModule
