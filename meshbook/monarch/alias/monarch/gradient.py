"""`monarch.gradient`: backward as a generator of gradients."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.gradients import grad_generator as grad_generator

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
