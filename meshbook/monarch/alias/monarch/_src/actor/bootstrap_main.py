"""`python -m monarch._src.actor.bootstrap_main`: how a `BootstrapCommand` of Monarch's starts a worker."""

import os
import sys

from meshbook.runtime.mesh.commands import ENTRY

if __name__ == "__main__":
    # A new interpreter: the worker takes meshbook from where its controller has it.
    os.execv(sys.executable, [sys.executable, ENTRY])
