"""Worker loops: processes that wait for clients, which attach to them, leave them, and shut them down."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import zmq

from meshbook.monarch import workers
from meshbook.monarch.keys import ChannelTransport
from meshbook.monarch.workers import attach_to_workers, enable_transport, run_worker_loop_forever
from meshbook.runtime.config import OVERRIDES
from meshbook.runtime.errors import LaunchError
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.hosts.worker_loop import KEY_VARIABLE, endpoint_of, worker_key
from meshbook.runtime.resources import free_port
from tests.support import PATIENCE, Probe, pids

pytestmark = pytest.mark.process
TRUST = workers.TRUST_ALL

CLIENT = """
import sys, os
from meshbook.monarch.workers import attach_to_workers
from meshbook import Actor, endpoint

class Worker(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

hosts = attach_to_workers(ca="trust_all_connections", workers=[sys.argv[1]])
print(hosts.spawn_procs().spawn("worker", Worker).pid.call_one().get(60), flush=True)
sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MESHBOOK_PRELOAD", "")


@pytest.fixture
def start_loop(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    loops: list[subprocess.Popen[bytes]] = []

    def start(address: str) -> subprocess.Popen[bytes]:
        command = "from meshbook.monarch.workers import *; import sys; "
        command += "run_worker_loop_forever(ca='trust_all_connections', address=sys.argv[1])"
        loops.append(subprocess.Popen([sys.executable, "-c", command, address]))
        return loops[-1]

    yield start
    for loop in loops:
        loop.kill()
        loop.wait()


def test_a_loop_serves_one_client_after_the_other(
    start_loop: Callable[[str], subprocess.Popen[bytes]], session: Session, tmp_path: Path
) -> None:
    address = f"ipc://{tmp_path}/loop"
    loop = start_loop(address)
    # The first client is killed; its worker ends, and the loop stays.
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    worker = psutil.Process(int(client.stdout.readline()))
    assert loop.pid in [each.pid for each in worker.parents()]
    client.send_signal(signal.SIGKILL)
    client.communicate()
    assert psutil.wait_procs([worker], timeout=PATIENCE)[1] == []
    assert loop.poll() is None
    # The second one shuts it down.
    hosts = attach_to_workers(ca=TRUST, workers=[address], name="lab")
    assert (dict(hosts.extent), hosts.names) == ({"hosts": 1}, ("lab-0",))
    [pid] = pids(hosts.spawn_procs().spawn("probe", Probe))
    assert loop.pid in [each.pid for each in psutil.Process(pid).parents()]
    hosts.shutdown().get(PATIENCE)
    assert loop.wait(PATIENCE) == 0


def test_a_loop_on_tcp_that_refuses_another_key(
    start_loop: Callable[[str], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, session: Session
) -> None:
    port = free_port("127.0.0.1")
    address = f"tcp://127.0.0.1:{port}"
    loop = start_loop(f"{address}@tcp://localhost:{port}")
    hosts = attach_to_workers(ca=TRUST, workers=[address])
    pids(hosts.spawn_procs().spawn("probe", Probe))
    monkeypatch.setenv(KEY_VARIABLE, zmq.curve_keypair()[1].decode())
    monkeypatch.setattr(session, "settings", msgspec.structs.replace(session.settings, launch_timeout=0.5))
    with pytest.raises(LaunchError, match=f"(?s)attach failed: config push failed during attach.*{address}"):
        attach_to_workers(ca=TRUST, workers=[address])
    assert loop.poll() is None
    hosts.shutdown().get(PATIENCE)
    assert loop.wait(PATIENCE) == 0


def test_the_key_is_made_once_for_its_user_alone(tmp_path: Path) -> None:
    key = worker_key()
    assert worker_key() == key
    file = tmp_path / "config" / "meshbook" / "worker.key"
    assert file.read_bytes() == key.secret
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["worker.key"]
    file.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        worker_key()
    file.chmod(0o600)
    file.write_text("no key")
    with pytest.raises(ValueError, match="invalid key"):
        worker_key()


def test_addresses() -> None:
    assert endpoint_of("tcp://gpu1:22222") == "tcp://gpu1:22222"
    assert endpoint_of("tcp://gpu1:1@tcp://10.0.0.1:2") == "tcp://gpu1:1"
    assert endpoint_of("tcp://gpu1:1@tcp://10.0.0.1:2", is_bound=True) == "tcp://10.0.0.1:2"
    assert endpoint_of("ipc:///run/loop") == "ipc:///run/loop"
    assert endpoint_of("ipc://loop") == f"ipc://{os.environ['MESHBOOK_RUNTIME_DIR']}/loop"
    for address in ("tcp://*:1", "metatls://gpu1:1", "inproc://1", "tcp://127.0.0.1:fd3"):
        with pytest.raises(NotImplementedError, match="not supported"):
            endpoint_of(address)
    with pytest.raises(ValueError, match="invalid address 'gpu1'"):
        endpoint_of("gpu1")
    for options in ({"ca": "/etc/ca"}, {"ca": TRUST, "private_key": "key"}):
        with pytest.raises(NotImplementedError, match="TLS"):
            run_worker_loop_forever(address="ipc://loop", **options)  # type: ignore[arg-type]


def test_a_transport_is_chosen_before_the_first_mesh(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "running_session", lambda: None)
    try:
        enable_transport(ChannelTransport.TcpWithHostname)
        with pytest.raises(ValueError, match="name of a transport"):
            enable_transport("pigeon")
        monkeypatch.setattr(workers, "running_session", lambda: session)
        enable_transport("tcp")
        with pytest.raises(RuntimeError, match="in use"):
            enable_transport("ipc")
    finally:
        OVERRIDES.clear()
