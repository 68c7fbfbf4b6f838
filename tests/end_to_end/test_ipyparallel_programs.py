"""The programs of `tests/ipyparallel_programs` get the same results with the stand-in as with ipyparallel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("joblib")  # scikit-learn brings it
PROGRAMS = Path(__file__).parent.parent / "ipyparallel_programs"
WITHOUT_TORCH = Path(__file__).parent.parent / "without_torch"
LIMIT = 90.0  # for a machine that does other things too; alone it takes some seconds
pytestmark = [pytest.mark.process, pytest.mark.without_torch]


def test_views() -> None:
    path = [str(WITHOUT_TORCH), *filter(None, [os.environ.get("PYTHONPATH")])]
    changed = {"PYTHONPATH": os.pathsep.join(path), "MESHBOOK_PRELOAD": "meshbook.runtime.cells.preload"}
    ran = subprocess.run(
        [sys.executable, PROGRAMS / "run.py", PROGRAMS / "views.py", "--stand-in"],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        env=os.environ | changed,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1]) == json.loads((PROGRAMS / "views.json").read_text())
