"""`monarch.common.function`: what remote functions are resolved by."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.remote import function_resolvers as function_resolvers

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
