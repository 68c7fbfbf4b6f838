"""What a worker needs for cells, imported in the fork server so that no cell pays for it. Imports only."""

import IPython.core.ultratb
import matplotlib_inline
import pygments.formatters.terminal256
import pygments.lexers.python
import pygments.styles.default

import meshbook.runtime.cells.actor

__all__ = ["IPython", "matplotlib_inline", "meshbook", "pygments"]
