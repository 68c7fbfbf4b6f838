"""Ranks for the tests of sharded tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.runtime.tensor.rank_pool import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    # Imports torch.
    from tests.runtime.tensor.rank_pool import RankPool

    pool = RankPool()
    yield pool
    pool.close()
