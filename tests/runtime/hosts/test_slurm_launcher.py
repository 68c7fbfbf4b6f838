"""Slurm's programs as shell scripts: how the launcher and the job use their answers. tests/hosts has a real Slurm."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from meshbook.monarch import jobs
from meshbook.monarch.jobs import SlurmJob
from meshbook.runtime.errors import LaunchError
from meshbook.runtime.hosts.slurm_launcher import SlurmLauncher

pytestmark = [pytest.mark.process, pytest.mark.without_torch]
Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a shell script into the path under the name of a program."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def install(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return install


def test_a_forked_child_does_not_hold_the_allocation(install: Install, tmp_path: Path) -> None:
    install("salloc", f'export SLURM_JOB_ID=7 SLURM_JOB_NODELIST="n1"; shift 2; "$@"; touch {tmp_path}/released')
    install("scontrol", "echo n1")
    launcher = SlurmLauncher(1, gpus_per_node=None, options=[], log=tmp_path / "log")
    assert launcher.hosts == ["n1"]
    waits, goes_on = os.pipe()
    if (child := os.fork()) == 0:
        os.close(goes_on)
        os.read(waits, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        launcher.close()
        assert (tmp_path / "released").exists()
    finally:
        os.close(goes_on)
        os.waitpid(child, 0)
        os.close(waits)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The present folder, where jobs write, without settings of the user."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_client_of_a_job_finds_the_job(install: Install, folder: Path) -> None:
    install("sbatch", 'echo "sbatch $1 $2" >> calls; cat > script; echo 7')
    install("scontrol", f'test -e {jobs.CACHE} && echo "scontrol $*" >> calls')
    install("squeue", "echo RUNNING")
    job = SlurmJob({"workers": 2})
    job.apply("client.py")
    assert (folder / "calls").read_text() == "sbatch --parsable --hold\nscontrol release 7\n"
    assert "client.py" in (folder / "script").read_text()
    assert jobs.job_load(jobs.CACHE).active


def test_a_job_has_the_options_of_its_arguments_and_a_time_limit_for_its_start(install: Install, folder: Path) -> None:
    install("sbatch", 'echo "$*" > options; cat > script; echo 7')
    install("squeue", "echo PENDING")
    wanted = {"ntasks_per_node": 2, "cpus_per_task": 4, "mem": "8G", "account": "lab", "qos": "high"}
    job = SlurmJob({"workers": 2}, **wanted, job_start_timeout=0)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match="job 7 has not started in 0 s: PENDING"):
        job.state(cached_path=None)
    options = (folder / "options").read_text().split()
    assert {f"--{name.replace('_', '-')}={value}" for name, value in wanted.items()} <= set(options)
    assert "--exclusive" in options
    SlurmJob({"workers": 2}, exclusive=False).apply()
    assert "--exclusive" not in (folder / "options").read_text()


def test_a_job_is_not_given_up_while_slurm_does_not_answer(install: Install, folder: Path) -> None:
    install("sbatch", "cat > script; echo 7")
    install("squeue", "echo RUNNING")
    job = SlurmJob({"workers": 2})
    job.apply()
    assert job.active
    install("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(LaunchError, match="Unable to contact"):
        _ = job.active
    install("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert not job.active
