"""`monarch.random`: the random numbers of the ranks."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.random import get_state as get_state
from meshbook.runtime.tensor.random import make_deterministic as make_deterministic
from meshbook.runtime.tensor.random import new_state as new_state
from meshbook.runtime.tensor.random import set_state as set_state

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
