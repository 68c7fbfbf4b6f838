"""`monarch.opaque_module`: modules that the ranks have."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.opaque import OpaqueModule as OpaqueModule
from meshbook.runtime.tensor.opaque import remote_autograd_function as remote_autograd_function

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
