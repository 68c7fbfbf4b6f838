"""What the tests of notebooks share."""

from __future__ import annotations

import pytest

from meshbook.runtime.config import Settings


@pytest.fixture
def sklearn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are born with scikit-learn: four that import it at once, on two cores, take seconds."""
    monkeypatch.setenv("MESHBOOK_PRELOAD", f"{Settings().preload},sklearn.datasets")
