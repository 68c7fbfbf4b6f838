"""`monarch._rust_bindings.monarch_hyperactor.config`."""

from meshbook.monarch.keys import Encoding as Encoding
from meshbook.monarch.modules import AliasModule

__path__: list[str] = []  # a package, as meshbook.monarch.modules has the reason
AliasModule.adopt(__name__)
del AliasModule
