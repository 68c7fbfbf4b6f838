"""An elastic job under chaos: the short form of what `benchmarks/chaos.py` does for twenty minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "benchmarks" / "chaos.py"
pytestmark = [pytest.mark.process, pytest.mark.without_torch]


@pytest.mark.long
def test_some_seconds_of_chaos_lose_nothing_and_leave_nothing(runtime_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "chaos.json"
    command = [sys.executable, str(PROGRAM), "--seconds", "6", "--faults", "30", "--seed", "4", "--json", str(file)]
    env = os.environ | {"MESHBOOK_RUNTIME_DIR": str(runtime_dir)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "FOUND" in line]) == (0, []), done.stderr
    figures = json.loads(file.read_text())
    assert figures["faults, kill, so far"]["rounds"][-1] > 5
    assert figures["heals, so far"]["rounds"][-1] > 1
    assert figures["pieces done, so far"]["rounds"][-1] > 100
    assert figures["wrong"]["rounds"] == [0] * 10
    assert list(runtime_dir.iterdir()) == []
