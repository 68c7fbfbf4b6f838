"""Real processes: one session per test module, whose fork server is warm before the first test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import Settings
from meshbook.runtime.hosts.session import Session, close_session, current_session
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.telemetry.output import Chunk, OutputChunk
from tests.support import PATIENCE

SpawnProcs = Callable[..., ProcMesh]


@pytest.fixture(scope="module", autouse=True)
def _preload(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fork servers import torch, except in a module marked `without_torch`: the import is most of what a start costs.

    Said by the variable: otherwise it would depend on whether a test has imported torch into this process.
    """
    with pytest.MonkeyPatch.context() as patch:
        is_without = request.node.get_closest_marker("without_torch") is not None
        patch.setenv("MESHBOOK_PRELOAD", "" if is_without else Settings().preload)
        yield


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
