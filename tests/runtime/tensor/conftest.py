"""Meshes for tests of the tensor engine, with workers as threads of this process, and ranks for sharded tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
import torch

from meshbook.runtime.hosts import session as sessions
from meshbook.runtime.hosts.in_process import InProcessSession
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.tensor.trees import fetch_shard
from tests.support import PATIENCE

if TYPE_CHECKING:
    from tests.runtime.tensor.rank_pool import RankPool


@pytest.fixture(scope="module")
def session() -> Iterator[InProcessSession]:
    """A session in this process, for all tests of a module: `this_host()` and `context()` find it."""
    with pytest.MonkeyPatch.context() as patch, contextlib.closing(InProcessSession()) as made:
        patch.setattr(sessions._Current, "session", made)
        yield made


@pytest.fixture(scope="module")
def make_procs(session: InProcessSession) -> Iterator[Callable[..., ProcMesh]]:
    made: list[ProcMesh] = []

    def make(**dims: int) -> ProcMesh:
        made.append(session.host.spawn_procs(per_host=dims))
        return made[-1]

    yield make
    for procs in made:
        procs.stop().get(PATIENCE)


@pytest.fixture(scope="module")
def pair(make_procs: Callable[..., ProcMesh]) -> ProcMesh:
    """Two ranks in a dimension called `gpus`."""
    return make_procs(gpus=2)


@pytest.fixture(scope="module")
def grid(make_procs: Callable[..., ProcMesh]) -> ProcMesh:
    """Two by two ranks: `hosts` and `gpus`."""
    return make_procs(hosts=2, gpus=2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def value(tree: Any, **dims: int) -> Any:
    return fetch_shard(tree, **dims).get(PATIENCE)


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    # Imports torch.
    from tests.runtime.tensor.rank_pool import RankPool

    pool = RankPool()
    yield pool
    pool.close()
