"""`monarch.cached_remote_function`: remote functions whose shapes are inferred once."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.opaque import cached_remote_function as cached_remote_function
from meshbook.runtime.tensor.opaque import remote_autograd_function as remote_autograd_function

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
