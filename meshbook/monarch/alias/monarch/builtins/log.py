"""`monarch.builtins.log`: remote functions for messages and logging."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.remote import log_remote as log_remote
from meshbook.runtime.tensor.remote import set_logging_level_remote as set_logging_level_remote

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
