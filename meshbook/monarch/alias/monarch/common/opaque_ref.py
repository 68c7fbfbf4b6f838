"""`monarch.common.opaque_ref`: references to Python objects that the ranks have."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.lanes import OpaqueRef as OpaqueRef

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
