"""meshbook under the name of PyTorch Monarch: put on the import path by meshbook.monarch, with no code of Monarch's."""

# ruff: noqa: E402, RUF100
import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("meshbook") is None:
    # A child process of a worker in a checkout finds this package by PYTHONPATH, but not the rest of meshbook.
    sys.path.append(str(Path(__file__).absolute().parents[4]))

from meshbook.monarch.modules import set_up

set_up(sys.modules[__name__])
del Path, importlib, set_up, sys
