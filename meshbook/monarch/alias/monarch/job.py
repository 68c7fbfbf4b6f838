"""`monarch.job`: the sources of hosts. Names that are not part of this version raise an error that says so."""

from meshbook.monarch.functions import hosts_from_config as hosts_from_config
from meshbook.monarch.modules import AliasModule

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
