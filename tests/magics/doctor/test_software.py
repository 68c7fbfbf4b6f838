"""Checks of the installed software."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from meshbook.magics.doctor.finding import Finding
from meshbook.magics.doctor.software import judge_gpus, judge_kernelspec, judge_packages
from tests.magics.doctor.test_doctor import check

HERE = str(Path(sys.executable))


def test_packages_that_are_missing_or_too_old_are_named() -> None:
    needed = [Requirement("torch>=2.6"), Requirement("pyzmq>=26.2"), Requirement("psutil>=6.0")]
    assert list(judge_packages(needed, {"torch": "2.4.1", "psutil": "7.0"})) == [
        Finding("problem", "torch", "2.4.1 is installed; meshbook needs torch>=2.6", 'pip install "torch>=2.6"'),
        Finding("problem", "pyzmq", "is not installed; meshbook needs pyzmq>=26.2", 'pip install "pyzmq>=26.2"'),
    ]
    assert list(judge_packages(needed[:1], {"torch": "2.13.0+cpu"})) == [Finding("ok", "packages", "torch 2.13.0+cpu")]


@pytest.mark.parametrize(
    ("finding", "level", "text", "remedy"),
    [
        (judge_gpus(0, "2.13.0+cpu", None), "note", "none", ""),
        (judge_gpus(4, "2.13.0", "13.0"), "ok", "4; torch 2.13.0 is built for CUDA 13.0", ""),
        (judge_gpus(4, "2.13.0+cpu", None), "warning", "built for CPUs only", "CUDA"),
        (judge_kernelspec("/k", HERE, HERE), "ok", "/k", ""),
        (
            judge_kernelspec("/k", None, "/gone/python"),
            "problem",
            "starts /gone/python, which does not exist",
            "install",
        ),
        (judge_kernelspec("/k", "/usr/other/python", "python3.9"), "note", "may use another meshbook", "install"),
    ],
)
def test_findings_about_software(finding: Finding, level: str, text: str, remedy: str) -> None:
    check(finding, level, text, remedy)
