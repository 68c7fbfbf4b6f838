"""benchmarks/gpu_check.py: a check that fails or hangs does not end the others, and all are reported."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import PATIENCE

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
PROBE = """
import threading
from gpu_checks import check, put

@check(60)
def fails():
    put(answer_ms=41.234567)
    assert 1 + 1 == 3, "wrong sum"

@check(60)
def ends_its_process():
    import os
    os._exit(3)

@check(3)
def hangs():
    threading.Event().wait()

@check(60, needs_gpu=True)
def needs_a_gpu(): ...

@check(60, environment={"ANSWER": "42"})
def holds():
    import os
    put(answer=os.environ["ANSWER"])
"""
pytestmark = [pytest.mark.process, pytest.mark.long]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The driver, with the checks above as its only stage."""
    (tmp_path / "probe.py").write_text(PROBE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(BENCHMARKS)
    driver = importlib.import_module("gpu_check")
    monkeypatch.setattr(driver, "STAGES", {"probe": 300.0})
    monkeypatch.setattr(driver, "LEAST_SECONDS", 0.0)
    return driver


def test_the_driver_reports_what_fails_and_goes_on(
    driver: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (tmp_path / "out").open("w") as file:
        lines = driver.report(driver.run_all(driver.checks_in("probe"), has_gpu=False), file)
    written = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == written == lines
    fails, ends, hangs, skipped, holds = written
    assert (fails["name"], fails["ok"], fails["answer_ms"]) == ("probe.fails", False, 41.23)
    assert fails["error"] == "AssertionError: wrong sum"
    assert any("in fails" in line for line in fails["log"])
    assert (ends["ok"], ends["error"]) == (False, "it ended with exit status 3")
    assert (hangs["ok"], hangs["error"]) == (False, "it took more than 3 s")
    assert (skipped["name"], skipped["skipped"]) == ("probe.needs_a_gpu", "it needs a GPU")
    assert (holds["ok"], holds["answer"]) == (True, "42")
    assert driver.format_summary(lines, 7).splitlines()[0] == "1 checks hold, 3 fail, 1 are skipped; 7 s"


def test_no_check_begins_after_the_end_of_its_stage(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "STAGES", {"probe": 0.0})
    monkeypatch.setattr(driver, "LEAST_SECONDS", 1.0)
    lines = list(driver.run_all(driver.checks_in("probe"), has_gpu=True))
    assert [line["skipped"] for line in lines] == ["no time is left in its stage"] * 5


def test_the_program_without_a_gpu(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "out"
    names = ["facts.machine", "data.transfer_during_capture"]
    command = [sys.executable, BENCHMARKS / "gpu_check.py", "--out", out, "--only", *names]
    found = subprocess.run(
        command, env={"PATH": "", "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert found.returncode == 0, found.stdout + found.stderr
    machine, capture = map(json.loads, out.read_text().splitlines())
    assert (machine["ok"], machine["python"]) == (True, sys.version.split()[0])
    assert capture == {"name": names[1], "skipped": "it needs a GPU"}
