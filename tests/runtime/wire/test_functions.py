"""Functions by value, bound to the variables of a rank where they arrive."""

from __future__ import annotations

from typing import Any

import pytest

from meshbook.runtime.wire import pickling
from meshbook.runtime.wire.functions import binding_to, lent

NOTEBOOK = """
import math
factor, total, device = 10, 0, "cuda"
def helper(x): return x * factor
def plain(x): return helper(x)
def comprehension(x): return sum([helper(y) for y in (x,)])
def generator(x): return sum(helper(y) for y in (x,))
def nested(x):
    def inner(y): return helper(y) + math.floor(0.5)
    return inner(x)
in_lambda = lambda x: max([x], key=lambda y: -helper(y)) and helper(x)
def default(x, f=lambda y: helper(y)): return f(x)
def closure():
    seen = []
    return lambda x: seen.append(x) or helper(seen[0])
enclosed = closure()
class Model:
    def __call__(self, x): return sum(map(self.apply, (x,)))
    @staticmethod
    def apply(x): return (lambda y: helper(y))(x)
model = Model()
def with_class(x): return Model()(x)
def shift(x): return x + offset
def uses(x): return shift(x)
def where(): return device
def count(x):
    global total
    total += helper(x)
    return total
def forget():
    global factor
    del factor
"""


@pytest.fixture
def notebook() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(NOTEBOOK, names)
    return names


def send(function: Any, rank: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    with binding_to(rank) as brought:
        return pickling.loads(pickling.dumps(function, "a function"), "a function"), brought


def call(function: Any, rank: dict[str, Any], *arguments: Any) -> Any:
    came, brought = send(function, rank)
    with lent(rank, brought):
        return came(*arguments)


@pytest.mark.parametrize(
    "name",
    ["plain", "comprehension", "generator", "nested", "in_lambda", "default", "enclosed", "model", "with_class"],
)
def test_what_a_function_uses_anywhere_inside_is_found(notebook: dict[str, Any], name: str) -> None:
    rank: dict[str, Any] = {}
    assert call(notebook[name], rank, 3) == 30
    assert rank.keys() <= {"__builtins__"}


def test_variables_of_the_rank_come_first(notebook: dict[str, Any]) -> None:
    rank = {"offset": 100, "device": "cpu"}
    assert call(notebook["uses"], rank, 3) == 103
    assert call(notebook["where"], rank) == "cpu"
    came, _ = send(notebook["shift"], rank)
    rank["offset"] = 200
    assert came(3) == 203


def test_writes_to_a_global_are_writes_to_a_variable_of_the_rank(notebook: dict[str, Any]) -> None:
    rank: dict[str, Any] = {}
    came, brought = send(notebook["count"], rank)
    for x in (1, 2, 3):
        with lent(rank, brought):
            came(x)
    assert rank["total"] == 60
    assert "helper" not in rank
    call(notebook["forget"], rank)
    assert "factor" not in rank


def test_without_a_namespace_a_function_keeps_what_it_uses(notebook: dict[str, Any]) -> None:
    came = pickling.loads(pickling.dumps(notebook["nested"], "a function"), "a function")
    notebook["factor"] = 5
    assert came(3) == 30


def test_functions_of_modules_keep_their_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": "not_main", "factor": 2}
    exec("def scale(x): return x * factor", names)
    rank = {"factor": 7}
    assert call(names["scale"], rank, 3) == 6
