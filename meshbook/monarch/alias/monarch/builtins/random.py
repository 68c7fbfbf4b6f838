"""`monarch.builtins.random`: remote functions for random numbers."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.random import get_rng_state_remote as get_rng_state_remote
from meshbook.runtime.tensor.random import set_manual_seed_remote as set_manual_seed_remote
from meshbook.runtime.tensor.random import set_rng_state_remote as set_rng_state_remote

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
