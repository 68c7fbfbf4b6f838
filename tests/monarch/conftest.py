"""No change of the settings outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meshbook.runtime.config import OVERRIDES


@pytest.fixture(autouse=True)
def _no_overrides() -> Iterator[None]:
    yield
    OVERRIDES.clear()
