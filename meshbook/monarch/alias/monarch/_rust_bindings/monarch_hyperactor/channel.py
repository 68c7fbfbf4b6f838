"""`monarch._rust_bindings.monarch_hyperactor.channel`."""

from meshbook.monarch.keys import ChannelTransport as ChannelTransport
from meshbook.monarch.modules import AliasModule

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
