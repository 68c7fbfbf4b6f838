"""`monarch._rust_bindings.monarch_hyperactor.supervision`: where Monarch's programs import SupervisionError from."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.actor.failure import MeshFailure as MeshFailure
from meshbook.runtime.errors import SupervisionError as SupervisionError

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
