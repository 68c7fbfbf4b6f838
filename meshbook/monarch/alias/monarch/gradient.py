"""`monarch.gradient`: backward as a generator of gradients, and functions with a backward of their own."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.gradients import grad_function as grad_function
from meshbook.runtime.tensor.gradients import grad_generator as grad_generator

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
