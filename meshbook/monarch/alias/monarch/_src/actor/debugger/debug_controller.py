"""`monarch._src.actor.debugger.debug_controller`."""

from meshbook.monarch.functions import DebugController as DebugController
from meshbook.monarch.functions import debug_controller as debug_controller
from meshbook.monarch.modules import AliasModule

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
