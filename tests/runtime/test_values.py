"""Value meshes: one value per rank, in the shape of the mesh that was called."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from meshbook.runtime.actor.values import Once, ValueMesh
from meshbook.runtime.geometry import Extent

SHAPE = Extent.of(hosts=2, gpus=3)


def mesh() -> ValueMesh[str]:
    return ValueMesh.of(SHAPE, "abcdef")


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
        (lambda: ValueMesh.from_indexed(SHAPE, [(0, "a")]), ValueError, "expected 6.*contain 1"),
    ],
)
def test_errors(ask: Callable[[], Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        ask()


def test_from_indexed_takes_any_order_and_the_last_of_a_rank() -> None:
    pairs = [(1, "x"), (0, "a"), (1, "b")]
    assert list(ValueMesh.from_indexed(Extent.of(gpus=2), pairs).values()) == ["a", "b"]


def test_it_travels_and_compares() -> None:
    assert pickle.loads(pickle.dumps(mesh())) == mesh()
    assert pickle.loads(pickle.dumps(mesh().slice(gpus=1))) == mesh().slice(gpus=1)
    assert mesh() != ValueMesh.of(SHAPE, "abcdex")
    assert ValueMesh.of(Extent.of(gpus=6), "abcdef") != mesh()


def test_repr_shows_the_first_few() -> None:
    assert "'a'" in repr(mesh())
    assert "9 in all" in repr(ValueMesh.of(Extent.of(gpus=9), range(9)))


def test_values_are_decoded_when_asked_for_and_once() -> None:
    decoded: list[int] = []

    def decode(rank: int) -> int:
        decoded.append(rank)
        return rank * 10

    lazy = ValueMesh(SHAPE.region, [Once(lambda rank=rank: decode(rank)) for rank in range(6)])  # type: ignore[misc]
    assert (lazy.get(4), lazy.slice(hosts=1).get(1)) == (40, 40)
    assert decoded == [4]


def test_what_decoding_raises_stays() -> None:
    once = Once(lambda: 1 // 0)
    errors = []
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as raised:
            once()
        errors.append(raised.value)
    assert errors[0] is errors[1]
