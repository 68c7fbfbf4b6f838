"""`monarch.exceptions`: the errors that calls raise."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.errors import ActorError as ActorError
from meshbook.runtime.errors import CallCancelled as CallCancelled
from meshbook.runtime.errors import CallTimeout as CallTimeout
from meshbook.runtime.errors import DeadlockError as DeadlockError
from meshbook.runtime.errors import ProcessDied as ProcessDied
from meshbook.runtime.errors import SupervisionError as SupervisionError
from meshbook.runtime.tensor.failures import DeviceMeshError as DeviceMeshError
from meshbook.runtime.tensor.failures import RemoteException as RemoteException

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
