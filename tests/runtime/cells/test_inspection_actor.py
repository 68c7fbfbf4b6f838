"""The actor that looks into a rank's namespace beside its cells."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_CELL_ACTOR = """
import sys
sys.modules["meshbook.runtime.cells.actor"] = None  # it cannot be imported
try:
    import meshbook.runtime.cells.inspection_actor
except ImportError:
    print("IPython" in sys.modules)
"""


@pytest.mark.process
def test_in_a_worker_without_preload_it_waits_for_the_cell_actor_before_it_imports_ipython() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_CELL_ACTOR], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
