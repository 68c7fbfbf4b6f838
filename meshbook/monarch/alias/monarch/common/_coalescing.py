"""`monarch.common._coalescing`: batches of operations, and functions that are recorded."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.recordings import coalescing as coalescing
from meshbook.runtime.tensor.recordings import compile as compile  # noqa: A004

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
