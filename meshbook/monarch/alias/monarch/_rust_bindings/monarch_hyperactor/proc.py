"""`monarch._rust_bindings.monarch_hyperactor.proc`."""

from meshbook.monarch.identities import ProcId as ProcId
from meshbook.monarch.identities import Uid as Uid
from meshbook.monarch.modules import AliasModule

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
