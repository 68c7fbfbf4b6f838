"""The algebra of meshes: tables for the rules and the error texts, numpy as the judge of the slicing."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.runtime.geometry import Extent, MeshTrait, NDSlice, Point, Region, Shape, Slice

GRID = Extent.of(hosts=2, gpus=4).region  # ranks 0 1 2 3 / 4 5 6 7
LABELS = ("a", "b", "c")


@dataclass(frozen=True)
class Letters(MeshTrait):
    """A mesh in miniature: rank n holds the n-th letter."""

    own_region: Region

    @property
    def region(self) -> Region:
        return self.own_region

    def _with_region(self, region: Region) -> Self:
        return type(self)(region)

    def text(self) -> str:
        return "".join("abcdefgh"[rank] for rank in self.region.ranks())


@st.composite
def cuts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int | slice, ...]]:
    """Sizes, and for each an index or a slice with a positive step, some of them empty."""
    sizes = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    ends = st.none() | st.integers(-6, 6)
    span = st.builds(slice, ends, ends, st.none() | st.integers(1, 3))
    return sizes, tuple(draw(st.integers(0, size - 1) | span) for size in sizes)


def base(sizes: tuple[int, ...]) -> Region:
    return Extent(LABELS[: len(sizes)], sizes).region


def as_array(region: Region) -> Any:
    return np.array(region.ranks()).reshape(region.extent.sizes)


# --- extents and points ---


def test_extent_is_a_mapping_in_order() -> None:
    extent = Extent(("hosts", "gpus"), (2, 4))
    assert extent == Extent.of(hosts=2, gpus=4) == {"hosts": 2, "gpus": 4}
    assert list(extent.keys()) == ["hosts", "gpus"]
    assert (extent.labels, extent.sizes, extent.nelements) == (["hosts", "gpus"], [2, 4], 8)
    assert extent.region.ranks() == tuple(range(8))
    assert repr(extent) == "Extent(hosts=2, gpus=4)"


def test_names_and_sizes_are_lists_of_their_own() -> None:
    region = Extent.of(hosts=2, gpus=4).region
    for listed in (
        region.extent.labels,
        region.extent.sizes,
        region.labels,
        region.ndslice.sizes,
        region.ndslice.strides,
    ):
        assert isinstance(listed, list)
        listed.clear()
    assert (region.labels, region.extent.sizes, region.ndslice.strides) == (["hosts", "gpus"], [2, 4], [4, 1])


def test_a_shape_is_shown_by_its_sizes() -> None:
    shape = Shape(["label0", "label1"], Slice(0, [2, 3], [3, 1]))
    assert str(shape) == "{label0=2,label1=3}"
    assert str(shape.at("label0", 1)) == "{label1=3} of ranks 3-5"
    sliced = "Slice { offset: 0, sizes: [2, 3], strides: [3, 1] }"
    assert repr(shape) == f'Shape {{ labels: ["label0", "label1"], slice: {sliced} }}'


@pytest.mark.parametrize(
    "look",
    [
        lambda: GRID.at("nodes", 0),
        lambda: GRID.select("nodes", slice(1)),
        lambda: GRID.index(nodes=0),
        lambda: GRID.extent["nodes"],
        lambda: GRID.extent.point(0)["nodes"],
        lambda: GRID.extent.point(0).size("nodes"),
    ],
)
def test_an_unknown_dimension_is_a_value_error(look: Any) -> None:
    with pytest.raises(ValueError, match=r"^unknown dimension 'nodes'; the dimensions are 'hosts', 'gpus'$"):
        look()


@pytest.mark.parametrize("error", [IndexError, ValueError])
def test_an_index_past_the_end_is_a_value_error(error: type[Exception]) -> None:
    with pytest.raises(error, match="gpus=4 is out of range"):
        GRID.at("gpus", 4)


@pytest.mark.parametrize(
    "look",
    [
        lambda: GRID.at("gpus", -1),
        lambda: GRID.ndslice.coordinates(-1),
        lambda: GRID.ndslice.get(-1),
        lambda: GRID.ndslice.nditem([-1, 0]),
        lambda: Slice(0, [-1], [1]),
    ],
)
@pytest.mark.parametrize("error", [TypeError, OverflowError])
def test_a_negative_number_is_a_type_error(look: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="-1"):
        look()


def test_the_order_of_dimensions_distinguishes_extents() -> None:
    assert Extent.of(hosts=2, gpus=4) != Extent.of(gpus=4, hosts=2)


def test_point_is_a_mapping_that_knows_rank_and_sizes() -> None:
    point = Extent.of(hosts=2, gpus=4).point(hosts=1, gpus=2)
    assert point == {"hosts": 1, "gpus": 2}
    assert (point.rank, point["gpus"], point.size("gpus"), list(point)) == (6, 2, 4, ["hosts", "gpus"])
    assert point == point.extent.point(6)
    assert GRID.slice(**point).ranks() == (6,)


def test_point_text_is_coordinate_of_size() -> None:
    point = Extent.of(hosts=1, gpus=2).point(1)
    assert str(point) == f"{point!r}" == "{'hosts': 0/1, 'gpus': 1/2}"


def test_point_of_an_empty_extent_is_empty() -> None:
    point = Extent((), ()).point(0)
    assert point == {}
    assert (point.rank, str(point), point.extent.nelements) == (0, "{}", 1)
    assert Extent((), ()).point() == point


def test_equal_coordinates_in_another_extent_are_another_point() -> None:
    assert Extent.of(gpus=2).point(1) != Extent.of(gpus=3).point(1)


@pytest.mark.parametrize(
    ("arguments", "coordinates", "error"),
    [
        ((8,), {}, ValueError),
        ((-1,), {}, OverflowError),
        ((), {"hosts": 0}, KeyError),
        ((), {"hosts": 0, "gpus": 0, "x": 0}, KeyError),
        ((), {"hosts": 0, "gpus": 4}, IndexError),
        ((1,), {"gpus": 1}, TypeError),
    ],
)
def test_points_that_do_not_exist(arguments: Any, coordinates: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        GRID.extent.point(*arguments, **coordinates)


@pytest.mark.parametrize(
    ("labels", "sizes", "error"),
    [
        (("a", "a"), (1, 2), "Duplicate dimension name 'a'"),
        (("a",), (1, 2), "one name per size"),
        ("ab", (1, 2), "list of strings"),
        (("a",), (-1,), "must not be negative"),
        (("a",), (1.5,), "must be an integer"),
    ],
)
def test_extents_that_cannot_be(labels: Any, sizes: Any, error: str) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError), match=error):
        Extent(labels, sizes)


# --- Slice ---


def test_slice_maps_coordinates_positions_and_ranks() -> None:
    grid = Slice(offset=1, sizes=[2, 3], strides=[6, 2])  # 1 3 5 / 7 9 11
    assert list(grid) == [1, 3, 5, 7, 9, 11]
    assert (len(grid), grid.ndim, grid.get(4), grid[4], grid[1:5:2]) == (6, 2, 9, 9, (3, 7))
    assert (grid.nditem((1, 1)), grid.coordinates(9)) == (9, [1, 1])
    assert (grid.index(9), grid.index([1, 1])) == (4, 4)
    assert (9 in grid, 8 in grid, "9" in grid) == (True, False, False)


def test_slice_text() -> None:
    assert NDSlice is Slice
    assert repr(Slice.new_row_major([2, 3])) == "Slice { offset: 0, sizes: [2, 3], strides: [3, 1] }"


@pytest.mark.parametrize(
    ("ranks", "slices"),
    [
        ([], []),
        ([5], [Slice(5, [1], [1])]),
        ([0, 1, 2], [Slice(0, [3], [1])]),
        ([0, 2, 4, 5, 6], [Slice(0, [3], [2]), Slice(5, [2], [1])]),
        ([3, 1], [Slice(3, [1], [1]), Slice(1, [1], [1])]),
    ],
)
def test_slices_from_a_list(ranks: list[int], slices: list[Slice]) -> None:
    assert Slice.from_list(ranks) == slices
    assert [rank for part in slices for rank in part] == ranks


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: Slice(-1, [2], [1]), OverflowError),
        (lambda: Slice(0, [-2], [1]), OverflowError),
        (lambda: Slice(0, [2], [-1]), OverflowError),
        (lambda: Slice(0, ["2"], [1]), TypeError),  # type: ignore[list-item]
        (lambda: Slice(0, [2, 2], [1]), ValueError),
        (lambda: Slice(0, [2, 2], [1, 1]), ValueError),
        (lambda: Slice(0, [2], [0]), ValueError),
        (lambda: Slice(0, [4], [2]).coordinates(3), ValueError),
        (lambda: Slice(0, [4], [2]).coordinates(8), ValueError),
        (lambda: Slice(4, [4], [2]).coordinates(2), ValueError),
        (lambda: Slice(0, [4], [2]).coordinates(-1), OverflowError),
        (lambda: Slice(0, [4], [2]).index(3), ValueError),
        (lambda: Slice(0, [0], [1]).coordinates(0), ValueError),
        (lambda: Slice(0, [4], [2]).nditem([4]), IndexError),
        (lambda: Slice(0, [4], [2]).nditem([-1]), OverflowError),
        (lambda: Slice(0, [4], [2]).nditem([1, 1]), ValueError),
        (lambda: Slice(0, [4], [2]).get(4), IndexError),
        (lambda: Slice(0, [4], [2])[4], IndexError),
        (lambda: Slice(0, [4], [2])[-1], OverflowError),
        (lambda: Slice(0, [4], [2]).get("0"), TypeError),  # type: ignore[arg-type]
    ],
)
def test_slice_refuses(call: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        call()


# --- slicing ---


@given(cuts())
def test_slicing_agrees_with_numpy(cut: tuple[tuple[int, ...], tuple[int | slice, ...]]) -> None:
    sizes, indices = cut
    expected = np.arange(np.prod(sizes)).reshape(sizes)[indices]
    dims = dict(zip(LABELS, indices, strict=False))
    if expected.size == 0:
        with pytest.raises(IndexError, match="selects nothing"):
            base(sizes).slice(**dims)
    else:
        np.testing.assert_array_equal(as_array(base(sizes).slice(**dims)), expected)


@given(cuts(), st.data())
def test_a_point_finds_its_way_back_to_the_base_rank(
    cut: tuple[tuple[int, ...], tuple[int | slice, ...]], data: st.DataObject
) -> None:
    sizes, indices = cut
    try:
        region = base(sizes).slice(**dict(zip(LABELS, indices, strict=False)))
    except IndexError:
        return
    for position, rank in enumerate(region.ranks()):
        point = region.point_of_base_rank(rank)
        assert (point.rank, point.extent) == (position, region.extent)
        assert region.ndslice.nditem(point.coordinates) == region.ndslice.get(position) == rank
    assert sum(map(region.contains, range(-1, len(base(sizes)) + 1))) == len(region)


@given(st.sets(st.integers(0, 23), min_size=2), st.data())
def test_a_picked_subset_is_sliced_like_a_list(ranks: set[int], data: st.DataObject) -> None:
    picked = Extent.of(a=2, b=3, c=4).region.pick(ranks)
    start = data.draw(st.integers(0, len(ranks) - 1))
    step = data.draw(st.integers(1, 3))
    part = picked.slice(ranks=slice(start, None, step))
    assert picked.ranks() == tuple(sorted(ranks))
    assert part.ranks() == picked.ranks()[start::step]
    assert [part.point_of_base_rank(rank).rank for rank in part.ranks()] == list(range(len(part)))
    assert sum(map(part.contains, range(24))) == len(part)


@pytest.mark.parametrize(
    ("dims", "sizes", "ranks"),
    [
        ({}, {"hosts": 2, "gpus": 4}, range(8)),
        ({"hosts": 1}, {"gpus": 4}, (4, 5, 6, 7)),
        ({"gpus": slice(2, 3)}, {"hosts": 2, "gpus": 1}, (2, 6)),
        ({"gpus": slice(None, None, 3)}, {"hosts": 2, "gpus": 2}, (0, 3, 4, 7)),
        ({"gpus": slice(-2, None)}, {"hosts": 2, "gpus": 2}, (2, 3, 6, 7)),
        ({"gpus": slice(2, 99)}, {"hosts": 2, "gpus": 2}, (2, 3, 6, 7)),
        ({"hosts": 1, "gpus": 0}, {}, (4,)),
    ],
)
def test_an_index_removes_a_dimension_and_a_slice_keeps_it(dims: Any, sizes: Any, ranks: Any) -> None:
    region = GRID.slice(**dims)
    assert (region.sizes, region.ranks()) == (sizes, tuple(ranks))


def test_slices_of_slices_are_relative() -> None:
    right = GRID.slice(gpus=slice(1, None))
    assert right.slice(gpus=slice(1, None)).ranks() == (2, 3, 6, 7)
    assert right.slice(gpus=0, hosts=1).ranks() == (5,)
    assert str(right.point_of_base_rank(5)) == "{'hosts': 1/2, 'gpus': 0/3}"


@pytest.mark.parametrize(
    ("dims", "error", "text"),
    [
        ({"gpu": 0}, TypeError, "unknown dimension 'gpu'; the dimensions are 'hosts', 'gpus'"),
        ({"gpus": 4}, IndexError, "gpus=4 is out of range: the indices are 0 to 3"),
        ({"gpus": -1}, IndexError, "gpus=-1 is out of range"),
        ({"gpus": slice(2, 2)}, IndexError, "gpus=2:2 selects nothing: the size of 'gpus' is 4"),
        ({"gpus": slice(7, None)}, IndexError, "gpus=7: selects nothing"),
        ({"gpus": slice(None, None, -1)}, IndexError, "gpus=::-1: .* negative step"),
        ({"gpus": slice(None, None, 0)}, ValueError, "step"),
        ({"gpus": "0"}, TypeError, "gpus='0': expected an integer or a slice"),
    ],
)
def test_cuts_that_do_not_exist(dims: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        GRID.slice(**dims)


# --- split, flatten, rename, size ---


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        ({"gpus": ("row", "column"), "row": 2}, {"hosts": 2, "row": 2, "column": 2}),
        ({"gpus": ("row", "column"), "column": 1}, {"hosts": 2, "row": 4, "column": 1}),
        ({"gpus": ("gpus", "half"), "half": 2}, {"hosts": 2, "gpus": 2, "half": 2}),
        ({"gpus": ("row", "column"), "row": 2, "column": 2}, {"hosts": 2, "row": 2, "column": 2}),
        ({"hosts": ("machines",)}, {"machines": 2, "gpus": 4}),
        ({"hosts": ("a", "b"), "gpus": ("c", "d"), "a": 1, "d": 2}, {"a": 1, "b": 2, "c": 2, "d": 2}),
    ],
)
def test_split_keeps_the_ranks_in_order(arguments: Any, sizes: Any) -> None:
    region = GRID.split(**arguments)
    assert (region.sizes, region.ranks()) == (sizes, GRID.ranks())
    assert region.flatten("ranks") == GRID.flatten("ranks")


def test_split_of_a_slice_keeps_its_gaps() -> None:
    odd = GRID.slice(gpus=slice(1, None, 2)).split(gpus=("x", "y"), y=2)
    assert (odd.sizes, odd.ranks()) == ({"hosts": 2, "x": 1, "y": 2}, (1, 3, 5, 7))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"gpus": ("a", "b")}, "Cannot infer size of 'a', 'b'"),
        ({"gpus": ("a", "b"), "a": 2, "c": 3}, "unused size constraints: 'c'"),
        ({"gpus": ("a", "a"), "a": 2}, "Duplicate dimension name 'a'"),
        ({"gpus": ("hosts", "a"), "a": 2}, "Duplicate dimension name 'hosts'"),
        ({"gpus": ("a", "b"), "a": 3}, "'gpus' of size 4 is not evenly divided by a=3"),
        ({"gpus": ("a", "b"), "a": 2, "b": 3}, "not evenly divided by a=2, b=3"),
        ({"gpus": ("a", "b"), "a": 2, "b": 1}, "not evenly divided by a=2, b=1"),
        ({"gpus": ("a", "b"), "a": 0}, "the size of 'a' must be at least 1"),
        ({"gpu": ("a", "b"), "a": 2}, "cannot split 'gpu': the dimensions are 'hosts', 'gpus'"),
        ({"gpus": "ab"}, "expected the names of new dimensions"),
        ({"gpus": ()}, "expected the names of new dimensions"),
    ],
)
def test_splits_that_cannot_be(arguments: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        GRID.split(**arguments)


def test_flatten_makes_one_dimension_of_ranks_without_gaps() -> None:
    assert GRID.flatten("all").sizes == {"all": 8}
    assert GRID.slice(hosts=1).flatten("all").ranks() == (4, 5, 6, 7)
    assert GRID.slice(hosts=slice(1, 2), gpus=slice(0, 2)).flatten("all").ranks() == (4, 5)
    assert Region.unity().flatten("all").sizes == {"all": 1}


@pytest.mark.parametrize(
    "region", [GRID.slice(gpus=slice(0, 2)), GRID.slice(hosts=0, gpus=slice(0, 4, 2)), GRID.pick({0, 3, 4})]
)
def test_flatten_of_gaps_is_refused(region: Region) -> None:
    with pytest.raises(ValueError, match="cannot flatten sparse mesh"):
        region.flatten("all")


def test_rename_is_done_at_once_so_names_can_swap() -> None:
    swapped = GRID.rename(hosts="gpus", gpus="hosts")
    assert (swapped.sizes, swapped.ranks()) == ({"gpus": 2, "hosts": 4}, GRID.ranks())


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"gpu": "x"}, "cannot rename 'gpu': the dimensions are 'hosts', 'gpus'"),
        ({"gpus": "hosts"}, "Duplicate dimension name 'hosts'"),
        ({"gpus": 3}, "list of strings"),
    ],
)
def test_names_that_cannot_be(names: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        GRID.rename(**names)


def test_sizes() -> None:
    assert (GRID.size(), GRID.size("gpus"), GRID.size(["hosts", "gpus"]), GRID.size([])) == (8, 4, 8, 1)
    for unknown in ("gpu", ["hosts", "gpu"]):
        with pytest.raises(KeyError, match="unknown dimension 'gpu'; the dimensions are 'hosts', 'gpus'"):
            GRID.size(unknown)


# --- any subset ---


def test_pick_names_its_one_dimension() -> None:
    assert GRID.pick([3, 0, 0, 6]).sizes == {"ranks": 3}
    assert GRID.slice(hosts=1).pick([4, 7]).sizes == {"gpus": 2}
    assert GRID.pick([1, 2], "failed").sizes == {"failed": 2}


def test_the_same_ranks_make_the_same_region_however_they_were_reached() -> None:
    assert GRID.pick([0, 2, 4, 6]) == Region(("ranks",), Slice(0, (4,), (2,)))
    assert GRID.pick([0, 3, 4, 5]).slice(ranks=slice(1, None)) == GRID.pick([3, 4, 5])


def test_a_picked_region_has_all_the_algebra() -> None:
    picked = GRID.pick([0, 1, 3, 7]).split(ranks=("a", "b"), a=2).rename(b="c")
    assert (picked.sizes, picked.ranks()) == ({"a": 2, "c": 2}, (0, 1, 3, 7))
    assert picked.slice(a=1).ranks() == (3, 7)
    assert picked.pick([1, 7]).ranks() == (1, 7)
    assert picked.coordinates(7) == {"a": 1, "c": 1}


def test_picks_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="not in this mesh: rank 8, 9"):
        GRID.pick([1, 9, 8])
    with pytest.raises(IndexError, match="no rank was selected"):
        GRID.pick([])
    with pytest.raises(ValueError, match="rank 2 is not in this mesh of 3 ranks"):
        GRID.pick([0, 1, 3]).point_of_base_rank(2)
    with pytest.raises(ValueError, match="rank 2 is not in this mesh of 4 ranks"):
        GRID.slice(hosts=1).point_of_base_rank(2)


# --- the other names ---


def test_a_shape_is_a_region() -> None:
    shape = Shape(["hosts", "gpus"], Slice.new_row_major([2, 4]))
    assert shape == GRID == GRID.region
    assert shape.at("hosts", 1) == shape.index(hosts=1) == GRID.slice(hosts=1)
    assert shape.select("gpus", slice(1, 3)).ranks() == (1, 2, 5, 6)
    assert shape.coordinates(6) == {"hosts": 1, "gpus": 2}
    assert (Shape.unity().ranks(), Shape.unity().sizes, len(Shape.unity())) == ((0,), {}, 1)


def test_mesh_trait_gives_the_algebra_of_its_region() -> None:
    letters = Letters(GRID)
    assert letters.slice(hosts=1).text() == "efgh"
    assert letters.slice(gpus=slice(1, 3)).slice(gpus=1).text() == "cg"
    assert letters.split(gpus=("x", "y"), x=2).slice(y=0).text() == "aceg"
    assert letters.flatten("all").slice(all=slice(6, None)).text() == "gh"
    assert letters.rename(gpus="cores").sizes == {"hosts": 2, "cores": 4}
    assert (letters.size(), letters.size("gpus"), len(letters), letters.extent) == (8, 4, 8, GRID.extent)


def test_dimensions_may_have_any_name() -> None:
    region = Extent(("self", "dims", "name"), (2, 2, 2)).region
    assert region.slice(self=1, dims=0).rename(name="names").sizes == {"names": 2}
    assert Letters(region).slice(self=1, dims=0).split(name=("self", "arguments"), self=1).text() == "ef"


@pytest.mark.parametrize(
    "value",
    [GRID, GRID.pick([0, 1, 3]), GRID.extent, GRID.extent.point(5), Point(0, Extent((), ())), GRID.ndslice],
)
def test_values_pickle_hash_and_do_not_change(value: Any) -> None:
    copy = pickle.loads(pickle.dumps(value))
    assert copy == value
    assert len({copy, value}) == 1
    with pytest.raises(AttributeError):
        value.rank = value.offset = value.labels = 3
