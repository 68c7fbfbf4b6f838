"""`monarch._src.actor.config`: whether log lines of an actor begin with its name."""

from meshbook.monarch.modules import LoggingModule

prefix_python_logs_with_actor: bool  # a property of the module's class

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
LoggingModule.adopt(__name__)
del LoggingModule
