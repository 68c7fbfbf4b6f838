"""`monarch.spmd`: run programs as torchrun does."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.spmd.spmd_actor import SPMDActor as SPMDActor
from meshbook.runtime.spmd.spmd_actor import setup_torch_elastic_env as setup_torch_elastic_env
from meshbook.runtime.spmd.spmd_actor import setup_torch_elastic_env_async as setup_torch_elastic_env_async

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
