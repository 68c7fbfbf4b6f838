"""Checks of the machine."""

from __future__ import annotations

import resource

import pytest

from meshbook.magics.doctor.finding import Finding
from meshbook.magics.doctor.machine import (
    judge_cores,
    judge_memory,
    judge_name_service,
    judge_nic,
    judge_open_files,
    judge_shared_memory,
)
from tests.magics.doctor.test_doctor import check

GIB = 1 << 30


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
    ],
)
def test_findings_about_the_machine(finding: Finding, level: str, text: str, remedy: str) -> None:
    check(finding, level, text, remedy)
