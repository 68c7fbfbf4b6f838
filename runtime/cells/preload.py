"""The imports of cells, preloaded in the fork server so that no cell pays for them. Imports only.

Not matplotlib_inline: its import installs hooks into the shell, which does not exist yet.
"""

import IPython.core.ultratb
import pygments.formatters.terminal256
import pygments.lexers.python
import pygments.styles.default

import meshbook.runtime.cells.actor
import meshbook.runtime.cells.inspection_actor

__all__ = ["IPython", "meshbook", "pygments"]
