"""PyTorch's own operator samples on sharded tensors: right or refused, forward and backward.

A part of what `operator_check.py` checks as a script: the first samples of each operator, on two ranks. The exact list
of the others makes the number of right operators known: 568 of 571.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.runtime.tensor.operator_check import check_part
from tests.support import few

if TYPE_CHECKING:
    from tests.runtime.tensor.rank_pool import RankPool

pytestmark = pytest.mark.process

PARTS = 8

# Operators of which some sample is not right, and the reason. A new torch may add to them, or take some away.
NOT_RIGHT = {
    "resize_": "refused: it changes the memory of the tensor",
    "resize_as_": "refused: it changes the memory of the tensor",
    "tensor_split": "raised by torch on the controller: it reads the memory of the tensor that says where to split",
}


@pytest.mark.parametrize("part", few(range(PARTS)))
def test_samples_are_right_or_refused(ranks: RankPool, part: int) -> None:
    records: list[dict[str, Any]] = ranks.run("2", check_part, "dims", 2, part, PARTS)
    assert records
    assert [record["wrong"] for record in records if record["wrong"]] == []
    not_right = {record["op"]: record for record in records if record["refused"] or record["raised"]}
    assert set(not_right) <= set(NOT_RIGHT), not_right
    expected = {name for name in NOT_RIGHT if name in {record["op"] for record in records}}
    assert set(not_right) == expected
