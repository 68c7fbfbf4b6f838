"""`monarch.opaque_object`: Python objects that the ranks have."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.opaque import OpaqueObject as OpaqueObject
from meshbook.runtime.tensor.opaque import opaque_method as opaque_method

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
