"""The line of an inspection that compares ranks."""

from __future__ import annotations

import pytest

from meshbook.magics.introspection.inspector import format_agreement
from meshbook.runtime.cells.object_info import Inspected

SAME, OTHER, THIRD, NOTHING = Inspected("a", "1"), Inspected("b", "2"), Inspected("c", "Tensor (3,)"), Inspected()


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ([SAME], "on 0"),
        ([SAME] * 8, "same on 0-7"),
        ([SAME] * 7 + [OTHER], "same on 0-6, differs on 7 (2)"),
        ([SAME, OTHER, THIRD, OTHER], "on 0, differs on 1-3 (2, Tensor (3,))"),
        ([SAME, NOTHING, None], "on 0, not defined on 1, no answer from 2"),
        ([SAME, *(Inspected(str(n), str(n)) for n in range(9))], "on 0, differs on 1-9 (0, 1, 2, …)"),
    ],
)
def test_agreement(said: list[Inspected | None], line: str) -> None:
    assert format_agreement(dict(enumerate(said)), 0) == line
