"""`monarch.config`."""

from meshbook.monarch.configuration import clear_runtime_config as clear_runtime_config
from meshbook.monarch.configuration import configure as configure
from meshbook.monarch.configuration import configured as configured
from meshbook.monarch.configuration import get_global_config as get_global_config
from meshbook.monarch.configuration import get_runtime_config as get_runtime_config
from meshbook.monarch.configuration import parametrize_config as parametrize_config
from meshbook.monarch.configuration import parametrize_config_pointwise as parametrize_config_pointwise
from meshbook.monarch.keys import ChannelTransport as ChannelTransport
from meshbook.monarch.keys import Encoding as Encoding
from meshbook.monarch.modules import AliasModule

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
