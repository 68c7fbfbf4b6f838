"""`monarch._src.actor.telemetry`."""

from meshbook.monarch.modules import AliasModule
from meshbook.monarch.telemetry import get_meter as get_meter
from meshbook.monarch.telemetry import traced as traced
from meshbook.runtime.telemetry.spans import span as span

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
