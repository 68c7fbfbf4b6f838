"""`monarch._rust_bindings.monarch_hyperactor.mailbox`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.failure import UndeliverableMessageEnvelope as UndeliverableMessageEnvelope

__path__: list[str] = []  # a package, as meshbook.monarch.modules has the reason
AliasModule.adopt(__name__)
del AliasModule
