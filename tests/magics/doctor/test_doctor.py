"""The findings of `%mesh doctor`, as tables, and an examination of this machine."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from meshbook.magics.doctor import CHECKS
from meshbook.magics.doctor.finding import Finding, examine
from meshbook.magics.doctor.processes import (
    a_worker,
    judge_bulk_data,
    judge_folder,
    judge_process_memory,
    process_memory,
)

GIB = 1 << 30


HERE = str(Path(sys.executable))


def check(finding: Finding, level: str, text: str, remedy: str) -> None:
    assert finding.level == level
    assert text in finding.text
    assert remedy in finding.remedy
    assert bool(finding.remedy) == bool(remedy)


@pytest.mark.parametrize(
    ("finding", "level", "text", "remedy"),
    [
        (judge_process_memory(""), "ok", "can read", ""),
        (judge_process_memory("Operation not permitted"), "note", "(Operation not permitted)", "SYS_PTRACE"),
        (judge_bulk_data("", "", lacks_nixl=False), "ok", "from memory to memory; between hosts by RDMA", ""),
        (judge_bulk_data("", "no NIC", lacks_nixl=False), "ok", "between hosts by TCP (no NIC)", ""),
        (judge_bulk_data("", "no NIXL", lacks_nixl=True), "note", "by TCP (no NIXL)", "meshbook[rdma]"),
        (judge_bulk_data("not permitted", "", lacks_nixl=False), "note", "by messages", "ptrace"),
        (judge_folder(Path("/tmp/m"), 5 * GIB, "ext4"), "ok", "/tmp/m (5 GiB free)", ""),
        (judge_folder(Path("/tmp/m"), 5 << 20, "ext4"), "warning", "5 MiB free", "MESHBOOK_RUNTIME_DIR"),
        (judge_folder(Path("/home/m"), 5 * GIB, "nfs4"), "problem", "is on nfs4", "MESHBOOK_RUNTIME_DIR"),
        (judge_folder(Path("/" + "x" * 60), 5 * GIB, "ext4"), "problem", "is too long", "MESHBOOK_RUNTIME_DIR"),
    ],
)
def test_findings_about_processes(finding: Finding, level: str, text: str, remedy: str) -> None:
    check(finding, level, text, remedy)


@pytest.mark.process
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_this_machine_can_be_examined() -> None:
    found = examine(check for check in CHECKS if check is not a_worker)
    assert not [finding for finding in found if "the check failed" in finding.text]
    assert {"Python", "packages", "/dev/shm", "open files", "ptrace"} <= {finding.subject for finding in found}


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="there is no process_vm_readv")
def test_reading_process_memory_is_tried() -> None:
    finding, _ = process_memory()
    assert finding.text.startswith(("workers can read", "workers cannot read each other's memory (Operation not"))
