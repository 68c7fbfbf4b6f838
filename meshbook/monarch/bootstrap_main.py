"""`python -m monarch._src.actor.bootstrap_main`: how a `BootstrapCommand` of Monarch's starts a worker."""

import os
import sys

from meshbook.runtime.mesh.commands import ENTRY

if __name__ == "__main__":
    # A new interpreter: the worker imports meshbook from the same place as its controller.
    os.execv(sys.executable, [sys.executable, ENTRY])
