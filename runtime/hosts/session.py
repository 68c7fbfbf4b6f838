"""The session: this process as the controller of a run, with the agent of its own host. One per process.

Started by the first use (`this_host()`, `context()`), or in the background by a notebook's kernel.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import subprocess
import sys
import threading

import msgspec

from meshbook.runtime.actor.context import CURRENT, Context, Instance, provide_client
from meshbook.runtime.config import PACKAGE, Settings, runtime_root
from meshbook.runtime.errors import ExitReport
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.launch import AGENT, AgentBirth, RunFolder, sweep
from meshbook.runtime.mesh.hosts import HOST, HostMesh
from meshbook.runtime.node.calls import Each
from meshbook.runtime.node.node import Node, Target
from meshbook.runtime.telemetry.output import TELEMETRY, OutputStore, TelemetryActor
from meshbook.runtime.transport.zeromq import ZmqTransport, ipc_url
from meshbook.runtime.wire.messages import Address

NOWHERE = Extent((), ())
STOP_SECONDS = 1.0  # what workers get to leave by themselves when the controller exits


class Session:
    """A controller: its node, its run's folder, and the agent it started. `close()` ends everything of the run."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings.from_environment()
        root = runtime_root(self.settings)
        sweep(root)
        self.run = secrets.token_hex(4)
        self.folder = RunFolder(root / self.run)
        self.output = OutputStore()
        self._agent_address = Address(AGENT, ipc_url(self.folder.path, AGENT))
        self.node = self._start_node()
        self._agent = self._start_agent()
        inbox = f"ipc://{self.folder.path}/"
        self.host = HostMesh([self._agent_address], NOWHERE.region, inbox, owned=True)
        self.context = Context(Instance("client", "client", NOWHERE.point(0), self.node))
        self._closing = threading.Lock()  # taken once, by whoever closes first
        self._watcher = threading.Thread(target=self._watch_agent, name="meshbook agent watcher", daemon=True)
        self._watcher.start()

    def _start_node(self) -> Node:
        transport = ZmqTransport("controller", ipc_url(self.folder.path, "controller"), self.settings)
        node = Node(transport, self.run, self.settings)
        node.host_inline(TELEMETRY, TelemetryActor(self.output))
        node.start()
        return node

    def _start_agent(self) -> subprocess.Popen[bytes]:
        with open(self.folder.path / "agent.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "meshbook.runtime.hosts.agent"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=_environment(),
                start_new_session=True,  # Ctrl-C on a terminal is for the controller alone
            )
        birth = AgentBirth(
            run=self.run,
            address=self._agent_address,
            controller=self.node.address,
            folder=str(self.folder.path),
            settings=self.settings,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(birth) + b"\n")
        process.stdin.flush()
        # A forked child of ours (multiprocessing) must not keep the agent alive when we are gone.
        os.register_at_fork(after_in_child=lambda: _close(process.stdin))
        return process

    def _watch_agent(self) -> None:
        code = self._agent.wait()
        log = (self.folder.path / "agent.log").read_text(errors="replace") if self.folder.path.exists() else ""
        tail = tuple(log.splitlines()[-self.settings.stderr_lines :])
        report = ExitReport(AGENT, self._agent.pid, code, tail, hint="the host agent ended, and its workers with it")
        self.node.announce_down(report, ())

    def close(self) -> None:
        """End the run: workers get a second to leave, then everything is killed. Idempotent."""
        if not self._closing.acquire(blocking=False):
            return
        with contextlib.suppress(Exception):
            asker = Each(1)
            self.node.call([Target(self._agent_address, HOST)], "stop_all", (("the session ended",), {}), NOWHERE, asker)
            asker.futures[0].get(timeout=STOP_SECONDS)
        _close(self._agent.stdin)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._agent.wait(timeout=STOP_SECONDS)
        self._agent.kill()
        self._watcher.join()
        self.node.close()
        self.folder.close()


class _Current:
    """The one door to this process's session."""

    session: Session | None = None
    lock = threading.Lock()  # guards the starting: two threads must not start two


def current_session() -> Session:
    """The session of this process, started on first use."""
    with _Current.lock:
        if _Current.session is None:
            _Current.session = Session()
            atexit.register(close_session)
        return _Current.session


def running_session() -> Session | None:
    """The session of this process if there is one."""
    return _Current.session


def close_session() -> None:
    """End this process's session; the next use starts another one."""
    with _Current.lock:
        session, _Current.session = _Current.session, None
    if session is not None:
        atexit.unregister(close_session)
        session.close()


def this_host() -> HostMesh:
    """The machine that the current actor or client runs on: a mesh without dimensions.

    `this_host().spawn_procs(per_host={"gpus": 4})` starts four processes on it.
    """
    found = CURRENT.get()
    if found is not None and (birth := found.actor_instance.proc) is not None:
        inbox = birth.world.agent.url.removesuffix(AGENT)
        return HostMesh([birth.world.agent], NOWHERE.region, inbox)
    return current_session().host


def install_client() -> None:
    """Let `context()` start a session on first use; called by `import meshbook`."""
    provide_client(lambda: current_session().context)


def _environment() -> dict[str, str]:
    """Ours, with the folder that holds this very package on the import path, wherever it came from."""
    package = str(PACKAGE.parent)
    known = os.environ.get("PYTHONPATH", "")
    return os.environ | {"PYTHONPATH": package + (os.pathsep + known if known else "")}


def _close(pipe: object) -> None:
    with contextlib.suppress(OSError):
        pipe.close()  # type: ignore[attr-defined]
