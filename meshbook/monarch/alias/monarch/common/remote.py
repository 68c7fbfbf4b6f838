"""`monarch.common.remote`: functions that run on the ranks."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.remote import call_on_shard_and_fetch as call_on_shard_and_fetch
from meshbook.runtime.tensor.remote import remote as remote

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
