"""When a task begins that depends on others, and on which ranks it may run, as tables."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from meshbook.magics.compat.task_dependencies import Condition, Dependency
from meshbook.runtime.cells.dependencies import ImpossibleDependency


class Call(Future[Any]):
    """A call that has ended on a rank: "1" with success, "1!" with failure; "" has not ended."""

    def __init__(self, state: str) -> None:
        super().__init__()
        self.engine = int(state[0]) if state else None
        if state.endswith("!"):
            self.set_exception(ValueError())
        elif state:
            self.set_result(None)


EITHER = {"failure": True}
FAILED = {"success": False, "failure": True}
ANY = {"all": False}


@pytest.mark.parametrize(
    ("states", "options", "met"),
    [
        ([], {}, True),
        ([], ANY, True),
        (["0", "1"], {}, True),
        (["0", ""], {}, False),
        (["0!", ""], {}, None),
        (["0!", ""], EITHER, False),
        (["0!", "1"], EITHER, True),
        (["0!", "1!"], FAILED, True),
        (["0!", "1"], FAILED, None),
        (["0!", ""], ANY, False),
        (["0!", "1"], ANY, True),
        (["0!", "1!"], ANY, None),
    ],
)
def test_when_a_condition_is_met(states: list[str], options: dict[str, bool], met: bool | None) -> None:
    condition = Condition(list(map(Call, states)), **options)
    if met is None:
        with pytest.raises(ImpossibleDependency):
            condition.is_met()
    else:
        assert condition.is_met() is met


@pytest.mark.parametrize(
    ("states", "options", "ranks"),
    [
        ([], {}, [0, 1, 2]),
        (["1", "1"], {}, [1]),
        (["1", "2"], {}, None),
        (["1", "2"], ANY, [1, 2]),
        (["1", "2!"], ANY, [1]),
        (["7"], {}, None),
    ],
)
def test_the_ranks_of_a_condition(states: list[str], options: dict[str, bool], ranks: list[int] | None) -> None:
    condition = Condition(list(map(Call, states)), **options)
    if ranks is None:
        with pytest.raises(ImpossibleDependency):
            condition.ranks([0, 1, 2])
    else:
        assert condition.ranks([0, 1, 2]) == ranks


def test_a_dependency_is_a_set_of_ids_and_results() -> None:
    result = Call("0")
    assert (Dependency("a"), Dependency(["a", "b"]), Dependency(result)) == ({"a"}, {"a", "b"}, {result})
    condition = Condition.of(Dependency(["a", "b"], all=False), lambda job: [Call({"a": "0!", "b": "1"}[job])])
    assert condition.is_met()
    assert Condition.of(None, lambda job: []).is_met()
    with pytest.raises(ValueError, match="at least one"):
        Dependency("a", success=False)
