"""`monarch.builtins`: remote functions for messages, logging and random numbers; its modules are `log` and `random`."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.random import get_rng_state_remote as get_rng_state_remote
from meshbook.runtime.tensor.random import set_manual_seed_remote as set_manual_seed_remote
from meshbook.runtime.tensor.random import set_rng_state_remote as set_rng_state_remote
from meshbook.runtime.tensor.remote import log_remote as log_remote
from meshbook.runtime.tensor.remote import set_logging_level_remote as set_logging_level_remote

AliasModule.adopt(__name__)
del AliasModule
