"""`monarch.simulator`: programs on meshes that do not exist."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.schedule import Costs as Costs
from meshbook.runtime.tensor.simulator import Simulator as Simulator
from meshbook.runtime.tensor.simulator import set_meta as set_meta

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
