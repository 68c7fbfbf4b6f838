"""`monarch.common.tensor`: tensors on a mesh."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.trees import reduce as reduce
from meshbook.runtime.tensor.trees import reduce_ as reduce_

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
