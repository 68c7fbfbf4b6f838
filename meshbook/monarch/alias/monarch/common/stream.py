"""`monarch.common.stream`: ordered queues of operations."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.device_mesh import get_active_stream as get_active_stream
from meshbook.runtime.tensor.streams import Stream as Stream

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
