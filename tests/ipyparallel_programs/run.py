"""Runs a program in an IPython shell, as `python run.py PROGRAM [--stand-in]`; the latter with meshbook's stand-in.

`views.json` is what ipyparallel 9.2 itself printed: `python run.py views.py`.
"""

from __future__ import annotations

import runpy
import sys

from IPython.core.interactiveshell import InteractiveShell

if __name__ == "__main__":
    shell = InteractiveShell.instance()
    if "--stand-in" in sys.argv:
        shell.run_line_magic("load_ext", "meshbook.magics.compat")
    runpy.run_path(sys.argv[1], run_name="__main__")
