"""`monarch._rust_bindings.monarch_hyperactor.mailbox`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.failure import UndeliverableMessageEnvelope as UndeliverableMessageEnvelope

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
