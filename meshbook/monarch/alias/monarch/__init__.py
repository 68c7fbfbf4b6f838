"""meshbook under the name of PyTorch Monarch: put on the import path by meshbook.monarch, with no code of Monarch's."""

# ruff: noqa: E402, RUF100
import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("meshbook") is None:
    # A child process of a worker in a checkout finds this package by PYTHONPATH, but not the rest of meshbook.
    sys.path.append(str(Path(__file__).absolute().parents[4]))

from meshbook.monarch.configuration import clear_runtime_config as clear_runtime_config
from meshbook.monarch.configuration import configure as configure
from meshbook.monarch.configuration import configured as configured
from meshbook.monarch.configuration import get_global_config as get_global_config
from meshbook.monarch.configuration import get_runtime_config as get_runtime_config
from meshbook.monarch.functions import world_mesh as world_mesh
from meshbook.monarch.keys import use_defaults
from meshbook.monarch.modules import RootModule
from meshbook.runtime.actor.explicit_calls import Selection as Selection
from meshbook.runtime.actor.future import Future as Future
from meshbook.runtime.geometry import Extent as Extent
from meshbook.runtime.geometry import NDSlice as NDSlice
from meshbook.runtime.geometry import Shape as Shape
from meshbook.runtime.hosts.faults import make_default_strict
from meshbook.runtime.mesh.tensors import heal_mesh as heal_mesh

RootModule.adopt(__name__)
make_default_strict()
use_defaults()
del Path, RootModule, importlib, make_default_strict, sys, use_defaults
