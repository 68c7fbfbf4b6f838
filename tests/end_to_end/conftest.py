"""Real processes: one session per test module, whose fork server is warm before the first test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.hosts.session import Session, close_session, current_session
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.telemetry.output import Chunk, OutputChunk

PATIENCE = 60.0  # for what is certain to come, on a machine that does other things too
SpawnProcs = Callable[..., ProcMesh]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    session = current_session()
    # The agent and the fork server are there from now on, so that no test is blamed for them.
    warm = session.host.spawn_procs()
    warm.initialized.get(PATIENCE)
    warm.stop().get(PATIENCE)
    yield session
    close_session()


@pytest.fixture(scope="module")
def host(session: Session) -> HostMesh:
    return session.host


@pytest.fixture
def spawn_procs(host: HostMesh) -> Iterator[SpawnProcs]:
    """`host.spawn_procs`, and the meshes are stopped at the test's end."""
    spawned: list[ProcMesh] = []

    def spawn(gpus: int = 1, **keywords: Any) -> ProcMesh:
        mesh = host.spawn_procs(per_host={"gpus": gpus}, **keywords)
        spawned.append(mesh)
        return mesh

    yield spawn
    for mesh in spawned:
        mesh.stop().get(PATIENCE)


@pytest.fixture
def own_session() -> Iterator[Session]:
    """A session that the test may break; calls go out from it."""
    session = Session()
    token = CURRENT.set(session.context)
    yield session
    CURRENT.reset(token)
    session.close()


class Heard:
    """The output of all ranks, to be waited for."""

    def __init__(self) -> None:
        self.chunks: list[OutputChunk] = []
        self._changed = threading.Condition()

    def add(self, chunk: Chunk) -> None:
        if isinstance(chunk, OutputChunk):
            with self._changed:
                self.chunks.append(chunk)
                self._changed.notify_all()

    def text(self, stream: str, rank: int = 0) -> str:
        return "".join(chunk.text for chunk in self.chunks if (chunk.stream, chunk.rank) == (stream, rank))

    def wait_until(self, is_there: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(is_there, PATIENCE), self.chunks


@pytest.fixture
def heard(session: Session) -> Iterator[Heard]:
    heard = Heard()
    session.output.set_default(heard.add)
    yield heard
    session.output.set_default(None)


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A folder for runs that no other test has. Short: a socket's path has 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="mb-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


class Script:
    """A controller in a process of its own: a Python source that talks to the test by lines."""

    def __init__(self, source: str, folder: Path, **environment: str) -> None:
        file = folder.with_suffix(".py")
        file.write_text(source)
        self.process = subprocess.Popen(
            [sys.executable, str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"MESHBOOK_RUNTIME_DIR": str(folder)} | environment,
        )
        self._file = file

    def read_line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the script ended"
        return line.rstrip("\n")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def family(self) -> list[psutil.Process]:
        """Everything that it started, and that was started by this, and so on."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def close(self) -> None:
        with self.process:
            self.process.kill()
        self._file.unlink()


@pytest.fixture
def run_script(runtime_dir: Path) -> Iterator[Callable[..., Script]]:
    scripts: list[Script] = []

    def run(source: str, **environment: str) -> Script:
        scripts.append(Script(source, runtime_dir, **environment))
        return scripts[-1]

    yield run
    for script in scripts:
        script.close()
