"""Ten thousand transfers while owners drop, die, and are stopped: every byte is right, and nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
pytestmark = [pytest.mark.process, pytest.mark.without_torch]


@pytest.mark.long
def test_ten_thousand_under_faults_bring_the_right_bytes_and_leave_nothing(runtime_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "chaos.json"
    command = [sys.executable, str(BENCHMARKS / "chaos_transfers.py"), "--transfers", "10000", "--json", str(file)]
    options = ["--parts", "1", "--kills", "3", "--stops", "3"]
    env = os.environ | {"MESHBOOK_RUNTIME_DIR": str(runtime_dir)}
    done = subprocess.run([*command, *options], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    figures = {name: each["rounds"][-1] for name, each in json.loads(file.read_text()).items()}
    assert figures["transfers, done, so far"] > 7000
    assert figures["transfers, dropped, so far"] > 0
    assert figures["arrays to an endpoint and back, so far"] > 0
    assert figures["buffers dropped, so far"] > 0
    assert figures["wrong"] == 0
