"""The findings of `%mesh doctor`, as tables, and an examination of this machine."""

from __future__ import annotations

import importlib.util
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from meshbook.magics.doctor import CHECKS
from meshbook.magics.doctor.finding import Finding, examine, format_report, worst_of
from meshbook.magics.doctor.machine import (
    judge_cores,
    judge_memory,
    judge_name_service,
    judge_nic,
    judge_open_files,
    judge_shared_memory,
)
from meshbook.magics.doctor.processes import (
    a_worker,
    judge_bulk_data,
    judge_folder,
    judge_process_memory,
    process_memory,
)
from meshbook.magics.doctor.software import judge_gpus, judge_kernelspec, judge_packages

GIB = 1 << 30
HERE = str(Path(sys.executable))


@pytest.mark.parametrize(
    ("finding", "level", "text", "remedy"),
    [
        (judge_cores(8, None), "ok", "8", ""),
        (judge_cores(8, 1.5), "note", "may use only 1.5", "--cpus"),
        (judge_cores(2, 4.0), "ok", "2", ""),
        (judge_memory(8 * GIB, None), "ok", "8.0 GiB free", ""),
        (
            judge_memory(64 * GIB, 4 * GIB),
            "ok",
            "4.0 GiB free of this container's limit (the machine has 64.0 free)",
            "",
        ),
        (judge_memory(64 * GIB, GIB), "warning", "1.0 GiB free", ""),
        (judge_shared_memory(None), "warning", "does not exist", "--shm-size"),
        (judge_shared_memory(64 << 20), "warning", "64 MiB in all", "--shm-size"),
        (judge_shared_memory(8 * GIB), "ok", "8.0 GiB", ""),
        (judge_open_files(resource.RLIM_INFINITY), "ok", "unlimited", ""),
        (judge_open_files(324), "warning", "a mesh of about 100 ranks", "ulimit -Hn"),
        (judge_open_files(1 << 20), "ok", "at most 1048576", ""),
        (judge_nic(0, 0, 0), "note", "by TCP", ""),
        (judge_nic(2, 0, 0), "warning", "none of them active", "ibstat"),
        (judge_nic(2, 1, 8 << 20), "warning", "lock only 8 MiB", "ulimit -l unlimited"),
        (judge_nic(2, 2, resource.RLIM_INFINITY), "ok", "2 active ports", ""),
        (judge_name_service("box", 0.02), "ok", "box in 20 ms", ""),
        (judge_name_service("box", 5.0), "warning", "takes 5.0 s to look up", "/etc/hosts"),
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
def test_judged_findings(finding: Finding, level: str, text: str, remedy: str) -> None:
    assert finding.level == level
    assert text in finding.text
    assert remedy in finding.remedy
    assert bool(finding.remedy) == bool(remedy)


def test_packages_that_are_missing_or_too_old_are_named() -> None:
    needed = [Requirement("torch>=2.6"), Requirement("pyzmq>=26.2"), Requirement("psutil>=6.0")]
    assert list(judge_packages(needed, {"torch": "2.4.1", "psutil": "7.0"})) == [
        Finding("problem", "torch", "2.4.1 is installed; meshbook needs torch>=2.6", 'pip install "torch>=2.6"'),
        Finding("problem", "pyzmq", "is not installed; meshbook needs pyzmq>=26.2", 'pip install "pyzmq>=26.2"'),
    ]
    assert list(judge_packages(needed[:1], {"torch": "2.13.0+cpu"})) == [Finding("ok", "packages", "torch 2.13.0+cpu")]


def test_a_check_that_fails_is_a_finding() -> None:
    def sees_well() -> Iterator[Finding]:
        yield Finding("ok", "eyes", "fine")

    def breaks_down() -> Iterator[Finding]:
        raise OSError("no such place")

    found = examine([breaks_down, sees_well])
    assert [finding.level for finding in found] == ["warning", "ok"]
    assert found[0].text == "the check failed: OSError: no such place"


def test_findings_are_formatted_as_a_table_with_a_summary() -> None:
    found = [Finding("ok", "cores", "8"), Finding("warning", "/dev/shm", "64 MiB in all", "give it more")]
    assert format_report(found) == (
        "ok       cores     8\n"
        "warning  /dev/shm  64 MiB in all\n"
        "                   -> give it more\n"
        "\n"
        "meshes work; 1 warning above"
    )
    assert format_report(found[:1]).endswith("\nno problems found")
    assert format_report([*found, Finding("problem", "x", "y")]).endswith("\n1 problem to fix before meshes work")


def test_the_worst_level_counts() -> None:
    assert worst_of([]) == "ok"
    assert worst_of([Finding("note", "", ""), Finding("problem", "", ""), Finding("ok", "", "")]) == "problem"


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
