"""`monarch.common.invocation`: the errors of operations on the ranks."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.failures import DeviceMeshError as DeviceMeshError
from meshbook.runtime.tensor.failures import RemoteException as RemoteException

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
