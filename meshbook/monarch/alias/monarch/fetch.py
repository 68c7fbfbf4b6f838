"""`monarch.fetch`: values of single ranks."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.remote import call_on_shard_and_fetch as call_on_shard_and_fetch
from meshbook.runtime.tensor.trees import fetch_shard as fetch_shard
from meshbook.runtime.tensor.trees import inspect as inspect
from meshbook.runtime.tensor.trees import show as show

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
