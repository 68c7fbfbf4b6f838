"""Monarch's jobs on this machine: started once, found again, killed; and programs on their hosts."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshbook import HostMesh
from meshbook.monarch.commands import exec_command, shell
from meshbook.monarch.jobs import JobState, LocalJob, ProcessJob, SlurmJob, job_load, job_loads
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.session import Session
from tests.support import PATIENCE, Probe, environment, pids

pytestmark = pytest.mark.process

SHELL = """
import sys
from meshbook import hosts, close_session
from meshbook.monarch.commands import shell
code = shell(hosts.local(1), env={"SHELL_TEST": "found"}, workdir=sys.argv[1])
close_session()
print("code", code)
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session: Session) -> Iterator[ProcessJob]:
    """Two hosts in two meshes."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MESHBOOK_PRELOAD", "")
    monkeypatch.chdir(tmp_path)
    job = ProcessJob({"trainers": 1, "judges": 1}, env={"OF_THE_JOB": "1"})
    yield job
    job.kill()


def test_a_job_is_started_once_and_found_again(job: ProcessJob, tmp_path: Path) -> None:
    assert not job.active
    state = job.state()
    assert job.active
    procs = state.trainers.spawn_procs(per_host={"gpus": 2})
    assert dict(procs.extent) == {"hosts": 1, "gpus": 2}
    pids(procs.spawn("probe", Probe))
    assert state.judges.names == ("judges-0",)
    with pytest.raises(AttributeError, match="no mesh 'players'; it has: trainers, judges"):
        _ = state.players
    assert job.state().trainers is state.trainers

    # Another program finds the job by its file.
    again = ProcessJob({"trainers": 1, "judges": 1}, env={"OF_THE_JOB": "1"})
    found = again.state()
    assert again.apply_id == job.apply_id
    assert found.trainers is not state.trainers
    probe = found.judges.spawn_procs().spawn("probe", Probe)
    assert probe.run.call_one(environment, "OF_THE_JOB").get(PATIENCE) == ["1"]
    loaded = job_load(tmp_path / ".monarch" / "job_state.pkl")
    assert loaded.active
    assert loaded.can_run(again)
    assert not loaded.can_run(ProcessJob({"trainers": 2}))

    output = tmp_path / "output"
    (tmp_path / "hello.py").write_text("import os, sys\nprint(os.environ['RANK'], sys.argv[1])\nsys.exit(3)\n")
    code = exec_command(
        found.judges, "hello.py now", workdir=str(tmp_path), output_dir=str(output), per_host={"gpus": 2}
    )
    assert code.get(PATIENCE) == 3
    assert [(output / f"rank{rank}.stdout").read_text() for rank in range(2)] == ["0 now\n", "1 now\n"]
    assert exec_command(found.judges, ["test", "$A", "=", "b c"], env={"A": "b c"}, rank=0).get(PATIENCE) == 1
    assert exec_command(found.judges, 'test "$A" = "b c"', env={"A": "b c"}, point={"hosts": 0}).get(PATIENCE) == 0
    with pytest.raises(IndexError, match="rank 1 is out of range"):
        exec_command(found.judges, "true", rank=1)
    with pytest.raises(ValueError, match="one of them"):
        exec_command(found.judges, "true", rank=0, point={"hosts": 0})

    loaded.kill()
    assert not job.active
    assert not again.active


def test_a_job_for_this_program_alone(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHBOOK_PRELOAD", "")
    job = LocalJob(hosts=("first", "second"))
    state = job.state(cached_path=None)
    assert [dict(mesh.extent) for mesh in (state.first, state.second)] == [{"hosts": 1}] * 2
    assert not job_loads(job.dumps()).active
    job.kill()
    assert state.first.is_shut_down
    assert not job.active


def test_what_is_no_job(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="a dict, not a job"):
        job_loads(pickle.dumps({}))
    assert not hasattr(JobState({}), "__wrapped__")
    one, other = SlurmJob({"a": 2}), SlurmJob({"a": 2}, slurm_args=["--exclusive"])
    assert (one.can_run(SlurmJob({"a": 2})), one.can_run(other), one.active) == (True, False, False)


def test_a_shell_on_a_host(tmp_path: Path, session: Session) -> None:
    with pytest.raises(ValueError, match="needs one host"):
        shell(HostMesh(session.host.agents * 2, Extent.of(hosts=2).region))
    process = subprocess.run(
        [sys.executable, "-c", SHELL, str(tmp_path)],
        input="echo $SHELL_TEST in $PWD\nexit 5\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert f"found in {tmp_path}" in process.stdout
    assert process.stdout.endswith("code 5\n")
