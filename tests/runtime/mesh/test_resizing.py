"""Which ranks of a mesh stay when that is resized."""

from __future__ import annotations

from typing import Any

import pytest

from meshbook.runtime.geometry import Extent
from meshbook.runtime.mesh.resizing import check_sizes, plan


@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        ({"gpus": 2}, {"gpus": 4}, [0, 1, None, None]),
        ({"gpus": 4}, {"gpus": 2}, [0, 1]),
        ({"gpus": 1}, {"gpus": 1}, [0]),
        ({"hosts": 2, "gpus": 2}, {"hosts": 2, "gpus": 3}, [0, 1, None, 2, 3, None]),
        ({"hosts": 2, "gpus": 3}, {"hosts": 2, "gpus": 1}, [0, 3]),
        ({"a": 2, "b": 2}, {"a": 3, "b": 1}, [0, 2, None]),
        ({"a": 1, "b": 3}, {"a": 2, "b": 2}, [0, 1, None, None]),
    ],
)
def test_a_rank_is_its_coordinates(before: dict[str, int], after: dict[str, int], stays: list[Any]) -> None:
    assert plan(Extent.of(**before), Extent.of(**after)) == stays


HOSTS, PROCS = Extent.of(hosts=2), Extent.of(hosts=2, gpus=4)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"hosts": 3}, "'hosts' is a dimension of the hosts"),
        ({"cores": 3}, "unknown dimension 'cores'; there are hosts, gpus"),
        ({"gpus": 0}, "'gpus' needs a size of at least 1, not 0"),
        ({"gpus": -1}, "not -1"),
        ({"gpus": True}, "not True"),
        ({"gpus": "2"}, "not '2'"),
        ({"gpus": 2.0}, "not 2.0"),
    ],
)
def test_sizes_that_cannot_be(sizes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check_sizes(PROCS, HOSTS, sizes)


def test_what_is_not_named_stays() -> None:
    assert check_sizes(PROCS, HOSTS, {"gpus": 2}) == Extent.of(hosts=2, gpus=2)
    assert check_sizes(PROCS, HOSTS, {}) == PROCS
