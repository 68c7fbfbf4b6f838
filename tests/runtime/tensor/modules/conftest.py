"""A mesh of two by two processes for all tests of modules on a mesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from meshbook.runtime.hosts.session import close_session
from tests.support import PATIENCE

if TYPE_CHECKING:
    from meshbook.runtime.tensor.sharded_mesh import Mesh


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    from meshbook.runtime.tensor.sharded_mesh import Mesh  # imports torch

    made = Mesh(shape=(2, 2), dims=("data", "model"))
    yield made
    made.stop().get(PATIENCE)
    close_session()
