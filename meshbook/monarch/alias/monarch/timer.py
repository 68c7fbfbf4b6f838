"""`monarch.timer`: the times of parts of a program, here and on the ranks."""

from meshbook.monarch.modules import AliasModule
from meshbook.runtime.tensor.timer import ExecutionTimer as ExecutionTimer
from meshbook.runtime.tensor.timer import execution_timer_start as execution_timer_start
from meshbook.runtime.tensor.timer import execution_timer_stop as execution_timer_stop
from meshbook.runtime.tensor.timer import get_execution_timer_average_ms as get_execution_timer_average_ms

__path__: list[str] = []  # a package; the reason is in meshbook.monarch.modules
AliasModule.adopt(__name__)
del AliasModule
