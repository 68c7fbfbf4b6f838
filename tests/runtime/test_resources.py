"""Which limit an error is about, and the remedy that is named."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshbook.runtime import resources
from meshbook.runtime.resources import (
    FILES_PER_PEER,
    LimitKind,
    count_gpus,
    ensure_files_for_peers,
    explain_limit,
    find_exhausted_limit,
    raise_file_limit,
)


@pytest.mark.parametrize(
    ("said", "scarce"),
    [
        ("OSError: [Errno 24] Too many open files", "files"),
        ("Too many open files (src/ipc_listener.cpp:297)", "files"),
        ("RuntimeError: can't start new thread", "processes"),
        ("Resource temporarily unavailable (src/thread.cpp:241)", "processes"),
        ("fork failed: Resource temporarily unavailable", "processes"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", None),  # of a socket, which is no limit
        ("OSError: [Errno 28] No space left on device", "disk"),
        ("OSError: [Errno 122] Disk quota exceeded", "disk"),
        ("ZeroDivisionError: division by zero", None),
        ("", None),
    ],
)
def test_what_the_system_says_is_about_a_limit(said: str, scarce: LimitKind | None) -> None:
    assert find_exhausted_limit(said) == scarce


def test_the_limit_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert f"{soft}, at most" in explain_limit(["something", "OSError: Too many open files"])
    assert "ulimit -n" in explain_limit("Too many open files")
    assert "ulimit -u" in explain_limit("can't start new thread")
    assert explain_limit("all is well") == ""
    monkeypatch.setattr(resources, "FULL_BYTES", 1 << 62)
    full = explain_limit("No space left on device", tmp_path)
    assert [each for each in (f"the disk of {tmp_path} is full", "MESHBOOK_RUNTIME_DIR") if each not in full] == []


@pytest.mark.parametrize("folder", ["", "/nowhere/at/all", "/proc"])
def test_nothing_is_said_of_another_disk(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "FULL_BYTES", 0)
    assert explain_limit("No space left on device", folder) == ""


@pytest.mark.parametrize(
    ("most", "now", "said"), [("14\n", "12\n", ", 14 in its cgroup, of which 12 are in use"), ("max\n", "12\n", "")]
)
def test_the_limit_of_a_cgroup_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: str, now: str, said: str
) -> None:
    (tmp_path / "pids.max").write_text(most)
    (tmp_path / "pids.current").write_text(now)
    monkeypatch.setattr(resources, "_groups", lambda: [tmp_path / "not there", tmp_path])
    told = explain_limit("can't start new thread")
    assert (said in told) if said else "cgroup" not in told


@pytest.fixture
def limit() -> Iterator[None]:
    """The limits of open files are what they were, afterwards."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("limit")
def test_the_limit_of_open_files_is_raised_where_it_is_too_low() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    assert ensure_files_for_peers(300) == ""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 300 * FILES_PER_PEER
    raise_file_limit(100)  # never lowered
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 300 * FILES_PER_PEER


@pytest.mark.usefixtures("limit")
def test_more_processes_than_there_can_be_files_are_refused() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        pytest.skip("there is no hard limit here")
    trouble = ensure_files_for_peers(hard)
    assert f"{hard} more processes need" in trouble
    assert "ulimit -n" in trouble


def test_without_a_count_of_open_files_no_process_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "DESCRIPTORS", tmp_path / "no such folder")
    assert ensure_files_for_peers(4) == ""


# -- GPUs ------------------------------------------------------------------------------------


def make_system(root: Path, *, nvidia: int = 0, amd: int = 0) -> Path:
    """Make the files of a machine with so many GPUs. Its processors are nodes of AMD's driver, too."""
    (root / "dev").mkdir()
    for number in range(nvidia):
        (root / f"proc/driver/nvidia/gpus/0000:0{number}:00.0").mkdir(parents=True)
    for number in range(amd + 1):
        node = root / f"sys/class/kfd/kfd/topology/nodes/{number}"
        node.mkdir(parents=True)
        (node / "properties").write_text(f"cpu_cores_count {0 if number else 64}\nsimd_count {304 if number else 0}\n")
    return root


@pytest.mark.parametrize(
    ("present", "hidden_by", "count"),
    [
        ({}, {}, 0),
        ({"nvidia": 4}, {}, 4),
        ({"nvidia": 4}, {"CUDA_VISIBLE_DEVICES": "1,GPU-3f"}, 2),
        ({"nvidia": 4}, {"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"nvidia": 4}, {"HIP_VISIBLE_DEVICES": "0"}, 4),
        ({"amd": 8}, {}, 8),
        ({"amd": 8}, {"HIP_VISIBLE_DEVICES": "0,1,2"}, 3),
        ({"amd": 8}, {"ROCR_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0"}, 1),
        ({"amd": 8}, {"CUDA_VISIBLE_DEVICES": "-1"}, 0),
    ],
)
def test_gpus_are_counted_without_loading_a_driver(
    present: dict[str, int], hidden_by: dict[str, str], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in hidden_by.items():
        monkeypatch.setenv(name, value)
    assert count_gpus(make_system(tmp_path, **present)) == count
