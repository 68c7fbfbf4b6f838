"""Monarch's jobs on this machine: started once, found again, killed; and programs on their hosts."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from meshbook import ActorError, HostMesh, this_host, this_proc
from meshbook.monarch.commands import ShellActor, exec_command, shell
from meshbook.monarch.jobs import JobState, LocalJob, ProcessJob, SlurmJob, job_load, job_loads
from meshbook.monarch.port_forwarding import PortForwarder
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.mesh.actors import ActorMesh
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
    one, other = SlurmJob({"a": 2}), SlurmJob({"a": 2}, slurm_args=["--signal=USR1"])
    assert (one.can_run(SlurmJob({"a": 2})), one.can_run(other), one.active) == (True, False, False)


def run_shell(folder: Path, text: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", SHELL, str(folder)],
        input=text,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    return process.stdout


def test_a_shell_on_a_host(tmp_path: Path, session: Session) -> None:
    with pytest.raises(ValueError, match="needs one host"):
        shell(HostMesh(session.host.agents * 2, Extent.of(hosts=2).region))
    said = run_shell(tmp_path, "echo $SHELL_TEST in $PWD\nexit 5\n")
    assert f"found in {tmp_path}" in said
    assert said.endswith("code 5\n")


@pytest.mark.parametrize("program", ["cat", "sleep 1000 & sleep 1000"])
def test_a_shell_leaves_no_process_at_the_end_of_its_input(tmp_path: Path, program: str) -> None:
    said = run_shell(tmp_path, f"echo $$ in $PWD\n{program}\n")
    assert "code " in said
    [leader] = re.findall(rf"^(\d+) in {tmp_path}\r?$", said, re.MULTILINE)
    assert [pid for pid in psutil.pids() if session_of(pid) == int(leader)] == []


def test_an_ended_shell_leaves_another_session_with_its_pid() -> None:
    other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    shell_actor = ShellActor()
    shell_actor._process = cast("subprocess.Popen[bytes]", SimpleNamespace(pid=other.pid, returncode=0))
    shell_actor._waiting = threading.Thread(target=lambda: None)
    shell_actor._waiting.start()
    try:
        shell_actor.__cleanup__(None)
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.1)
    finally:
        other.kill()
        other.wait()


def session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


@contextlib.contextmanager
def echo_server() -> Iterator[int]:
    """A server that sends each connection back what it has received, once that has ended; yields its port."""

    class Echo(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"from there: " + self.rfile.read())

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            serving.join()


def ask(port: int, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(functools.partial(connection.recv, 1 << 16), b""))


def is_refused(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE):
        return False
    return True


def test_ports_are_forwarded_until_the_job_ends(job: ProcessJob) -> None:
    state = job.state()
    host = state.trainers.slice(hosts=0)
    forwarder = this_proc().spawn("forwarder", PortForwarder)
    with echo_server() as server:
        [port] = forwarder.forward.call_one(this_host(), host, connect_port=server).get(PATIENCE)
        data = os.urandom(700_000)  # more than one message
        assert ask(port, data) == b"from there: " + data
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda word: ask(port, word), [b"a", b"b", b"c", b"d"])) == [
                b"from there: " + word for word in (b"a", b"b", b"c", b"d")
            ]
        forwarder.close.call_one().get(PATIENCE)
        assert is_refused(port)
        with pytest.raises(ActorError, match="address already in use"):
            forwarder.forward.call_one(this_host(), host, connect_port=server, listen_port=server).get(PATIENCE)
        [port] = forwarder.forward.call_one(this_host(), host, connect_port=server).get(PATIENCE)
        other = this_proc().spawn("forwarder", PortForwarder)
        [its_port] = other.forward.call_one(this_host(), host, connect_port=server).get(PATIENCE)
        assert ask(its_port, b"e") == b"from there: e"
        cast(ActorMesh, other).stop().get(PATIENCE)
        wait_until_refused(its_port)
    assert ask(port, b"no program listens there") == b""
    job.kill()
    wait_until_refused(port)
    forwarder.close.call_one().get(PATIENCE)


def wait_until_refused(port: int) -> None:
    end = time.monotonic() + PATIENCE
    while not is_refused(port):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_ports_that_cannot_be_forwarded(session: Session) -> None:
    hosts = HostMesh(session.host.agents * 2, Extent.of(hosts=2).region)
    forwarder = this_proc().spawn("forwarder", PortForwarder)
    with pytest.raises(ActorError, match="one shape"):
        forwarder.forward.call_one(this_host(), hosts, connect_port=80).get(PATIENCE)
    with pytest.raises(ActorError, match="invalid port"):
        forwarder.forward.call_one(hosts, hosts, connect_port=0).get(PATIENCE)
