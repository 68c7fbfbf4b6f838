"""`monarch.fetch`: values of single ranks."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.fetching import fetch_shard as fetch_shard
from meshbook.runtime.tensor.fetching import inspect as inspect
from meshbook.runtime.tensor.fetching import show as show
from meshbook.runtime.tensor.remote import call_on_shard_and_fetch as call_on_shard_and_fetch

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
