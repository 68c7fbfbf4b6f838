"""What a worker needs for cells, imported in the fork server so that no cell pays for it. Imports only.

Not matplotlib_inline: it hooks itself into the shell when it is imported, and here there is none yet.
"""

import IPython.core.ultratb
import pygments.formatters.terminal256
import pygments.lexers.python
import pygments.styles.default

import meshbook.runtime.cells.actor
import meshbook.runtime.cells.inspection

__all__ = ["IPython", "meshbook", "pygments"]
