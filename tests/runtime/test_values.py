"""Value meshes: one value per rank, in the shape of the mesh that was called."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meshbook.runtime.actor.values import LazyValue, ValueMesh
from meshbook.runtime.geometry import Extent

SHAPE = Extent.of(hosts=2, gpus=3)


def mesh() -> ValueMesh[str]:
    return ValueMesh.of(SHAPE, "abcdef")


def test_the_error_for_a_missing_attribute_lists_those_of_the_value_mesh() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'value': use values\(\)"):
        _ = mesh().value  # type: ignore[attr-defined]


def test_values_come_in_rank_order_with_their_points() -> None:
    assert list(mesh().values()) == list("abcdef")
    assert [(point.rank, dict(point), value) for point, value in mesh()][4] == (4, {"hosts": 1, "gpus": 1}, "e")


@pytest.mark.parametrize(
    ("cut", "values"),
    [
        ({"hosts": 1}, "def"),
        ({"gpus": 0}, "ad"),
        ({"gpus": slice(1, 3)}, "bcef"),
        ({"hosts": 0, "gpus": 2}, "c"),
        ({"gpus": slice(0, 3, 2)}, "acdf"),
    ],
    ids=repr,
)
def test_slices(cut: dict[str, Any], values: str) -> None:
    cut_mesh = mesh().slice(**cut)
    assert list(cut_mesh.values()) == list(values)
    assert [point.rank for point, _ in cut_mesh] == list(range(len(values)))
    assert [cut_mesh.get(rank) for rank in range(len(values))] == list(values)


def test_a_slice_of_a_slice_is_relative() -> None:
    assert list(mesh().slice(gpus=slice(1, 3)).slice(gpus=1).values()) == ["c", "f"]


def test_other_shapes_of_the_same_values() -> None:
    assert list(mesh().flatten("rank").slice(rank=slice(2, 4)).values()) == ["c", "d"]
    assert mesh().rename(hosts="nodes").item(nodes=1, gpus=0) == "d"


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (lambda: mesh().get(6), ValueError, "rank 6 is out of range.*6 ranks"),
        (lambda: mesh().get(-1), ValueError, "out of range"),
        (lambda: mesh().item(hosts=1), KeyError, "gpus"),
        (lambda: mesh().item(hosts=1, gpus=1, x=0), KeyError, "x"),
        (lambda: mesh().item(hosts=2, gpus=0), IndexError, "2"),
        (lambda: ValueMesh.of(SHAPE, "abc"), ValueError, "expected 6 values.*got 3"),
        (lambda: ValueMesh.from_indexed(SHAPE, [(0, "a")]), ValueError, "expected 6.*contains 1"),
        (lambda: ValueMesh.from_indexed(SHAPE, [(6, "a")]), ValueError, "rank 6 is out of range.*6 ranks"),
        (lambda: ValueMesh.from_indexed(SHAPE, [(-1, "a")]), ValueError, "rank -1 is out of range"),
    ],
)
def test_errors(ask: Callable[[], Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ask()


def test_from_indexed_takes_any_order_and_the_last_of_a_rank() -> None:
    pairs = [(1, "x"), (0, "a"), (1, "b")]
    shape = Extent.of(gpus=2)
    for each in (shape, shape.region):
        assert list(ValueMesh.from_indexed(each, pairs).values()) == ["a", "b"]


def test_it_may_be_subscripted() -> None:
    assert list(ValueMesh[str].of(Extent.of(gpus=2), "ab").values()) == ["a", "b"]
    assert list(ValueMesh[int].from_indexed(Extent.of(gpus=1), [(0, 1)]).values()) == [1]
    assert isinstance(mesh(), ValueMesh)


def test_it_travels_and_compares() -> None:
    assert pickle.loads(pickle.dumps(mesh())) == mesh()
    assert pickle.loads(pickle.dumps(mesh().slice(gpus=1))) == mesh().slice(gpus=1)
    assert mesh() != ValueMesh.of(SHAPE, "abcdex")
    assert ValueMesh.of(Extent.of(gpus=6), "abcdef") != mesh()


MANY = Extent.of(hosts=100, gpus=100)
FIRST = ["a", *[None] * 9_998, 2.5]


@pytest.mark.parametrize(
    "value", [None, True, 7, -0.0, "a text", b"bytes", (1, ("a", None)), Extent.of(gpus=2), math.nan], ids=repr
)
def test_equal_neighbours_travel_once(value: Any) -> None:
    many = ValueMesh.of(MANY, [value] * MANY.nelements)
    lazy = ValueMesh.of_cells(MANY.region, [LazyValue(lambda: value) for _ in range(MANY.nelements)])
    for each in (many, lazy):
        data = pickle.dumps(each)
        assert len(data) < 400
        again = list(pickle.loads(data).values())
        assert len(again) == MANY.nelements
        assert all(repr(found) == repr(value) for found in again)


def test_runs_keep_their_places() -> None:
    again = pickle.loads(pickle.dumps(ValueMesh.of(MANY, FIRST)))
    assert list(again.values()) == FIRST
    assert [again.get(rank) for rank in (0, 1, 9_998, 9_999)] == ["a", None, None, 2.5]
    assert again.item(hosts=99, gpus=99) == 2.5
    assert list(again.slice(hosts=99).values()) == [*[None] * 99, 2.5]
    assert list(again.slice(hosts=slice(0, 100, 99), gpus=slice(0, 100, 99)).values()) == ["a", None, None, 2.5]
    cut = pickle.dumps(again.slice(hosts=50))
    assert len(cut) < 400
    assert list(pickle.loads(cut).values()) == [None] * 100


def test_different_values_cost_no_more_than_a_list() -> None:
    values = [f"value {rank}" for rank in range(MANY.nelements)]
    data = pickle.dumps(ValueMesh.of(MANY, values))
    assert len(data) < len(pickle.dumps(values)) + 400
    assert list(pickle.loads(data).values()) == values


def test_what_looks_equal_stays_itself() -> None:
    values = [1, True, 1.0, 0.0, -0.0, math.nan, -math.nan, (1,), (True,), (1.0,), [1], [1], "1", b"1"]
    again = list(pickle.loads(pickle.dumps(ValueMesh.of(Extent.of(gpus=len(values)), values))).values())
    assert [repr(value) for value in again] == [repr(value) for value in values]
    assert [type(value) for value in again] == [type(value) for value in values]
    assert math.copysign(1, again[6]) == -1
    again[10].append(2)
    assert again[11] == [1]


def test_arrays_travel_as_they_are() -> None:
    values = [np.zeros(2), np.zeros(2), np.ones(2)]  # comparing them gives no truth value
    again = list(pickle.loads(pickle.dumps(ValueMesh.of(Extent.of(gpus=3), values))).values())
    assert [value.tolist() for value in again] == [[0, 0], [0, 0], [1, 1]]


def test_repr_shows_the_first_few() -> None:
    assert "'a'" in repr(mesh())
    assert "9 in all" in repr(ValueMesh.of(Extent.of(gpus=9), range(9)))


def test_values_are_decoded_when_asked_for_and_once() -> None:
    decoded: list[int] = []

    def decode(rank: int) -> int:
        decoded.append(rank)
        return rank * 10

    lazy = ValueMesh.of_cells(SHAPE.region, [LazyValue(lambda rank=rank: decode(rank)) for rank in range(6)])  # type: ignore[misc]
    assert (lazy.get(4), lazy.slice(hosts=1).get(1)) == (40, 40)
    assert decoded == [4]


def test_what_decoding_raises_stays() -> None:
    once = LazyValue(lambda: 1 // 0)
    errors = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as raised:
            once()
        errors.append(raised.value)
    assert errors[0] is errors[1]


def test_a_value_mesh_is_made_of_a_shape_and_values() -> None:
    mesh = ValueMesh(SHAPE.region, "abcdef")
    assert mesh.values() == list("abcdef")
    assert mesh == ValueMesh.of(SHAPE, "abcdef")
    assert ValueMesh(SHAPE.region.slice(hosts=1), "xyz").values() == list("xyz")
    with pytest.raises(ValueError, match="expected 6 values"):
        ValueMesh(SHAPE, "abc")
