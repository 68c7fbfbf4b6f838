"""Selectors, as tables: their parsed form, the ranks they select, and the errors of invalid ones."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshbook.magics.errors import SelectionError
from meshbook.magics.syntax.selectors import (
    Dimension,
    Dimensions,
    Everything,
    Except,
    Index,
    LastCell,
    OutcomeSelector,
    Range,
    Ranks,
    SelectedRegion,
    Selection,
    SpanSelector,
    parse,
    resolve,
    split_by_mesh,
)
from meshbook.runtime.geometry import Extent, Region

GRID = Extent.of(hosts=2, gpus=4).region
MESHES = {"main": GRID, "trainers": Extent.of(gpus=6).region, "half": GRID.slice(hosts=1)}
LAST = LastCell(failed=frozenset({1, 6}), ok=frozenset({0, 2, 3, 4, 5, 7}))


def select(text: str, history: LastCell = LAST, meshes: dict[str, Region] = MESHES) -> SelectedRegion:
    return resolve(parse(text), meshes, "main", history)


# --- valid syntax ---


@pytest.mark.parametrize(
    ("text", "mesh", "part"),
    [
        ("all", None, Everything()),
        ("0", None, Ranks((Index(0),))),
        ("-1", None, Ranks((Index(-1),))),
        ("0,3", None, Ranks((Index(0), Index(3)))),
        ("0:4", None, Ranks((SpanSelector(0, 4, None),))),
        ("0-3", None, Ranks((Range(0, 3),))),
        ("0-2,5,-1", None, Ranks((Range(0, 2), Index(5), Index(-1)))),
        ("trainers[gpus=0-1]", "trainers", Dimensions((Dimension("gpus", Range(0, 1)),))),
        ("::2", None, Ranks((SpanSelector(None, None, 2),))),
        (":", None, Ranks((SpanSelector(None, None, None),))),
        ("-2:", None, Ranks((SpanSelector(-2, None, None),))),
        ("0,4:6,-1", None, Ranks((Index(0), SpanSelector(4, 6, None), Index(-1)))),
        ("!3", None, Except(Ranks((Index(3),)))),
        ("!0:2", None, Except(Ranks((SpanSelector(0, 2, None),)))),
        ("!0,3", None, Except(Ranks((Index(0), Index(3))))),
        ("!failed", None, Except(OutcomeSelector("failed"))),
        (
            "gpus=0:4,hosts=1",
            None,
            Dimensions((Dimension("gpus", SpanSelector(0, 4, None)), Dimension("hosts", Index(1)))),
        ),
        ("trainers", "trainers", Everything()),
        ("trainers[gpus=0]", "trainers", Dimensions((Dimension("gpus", Index(0)),))),
        ("trainers[0,3]", "trainers", Ranks((Index(0), Index(3)))),
        ("trainers[!3]", "trainers", Except(Ranks((Index(3),)))),
        ("trainers[failed]", "trainers", OutcomeSelector("failed")),
        ("ok[all]", "ok", Everything()),
        ("all=0", None, Dimensions((Dimension("all", Index(0)),))),
        ("failed", None, OutcomeSelector("failed")),
        ("ok", None, OutcomeSelector("ok")),
        ("changed", None, OutcomeSelector("changed")),
        ("  trainers [ gpus = 0 : 2 ] ", "trainers", Dimensions((Dimension("gpus", SpanSelector(0, 2, None)),))),
        ("größe=1", None, Dimensions((Dimension("größe", Index(1)),))),
    ],
)
def test_parse(text: str, mesh: str | None, part: object) -> None:
    assert parse(text) == Selection(text, mesh, part)  # type: ignore[arg-type]


def test_parts_have_columns() -> None:
    selection = parse("trainers[!gpus=0, hosts=1:]")
    assert isinstance(selection.part, Except)
    assert isinstance(selection.part.choice, Dimensions)
    gpus, hosts = selection.part.choice.items
    columns = (
        selection.column,
        selection.part.column,
        gpus.column,
        gpus.item.column,
        hosts.column,
        hosts.item.column,
    )
    assert columns == (1, 10, 11, 16, 19, 25)


# --- selected ranks ---


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("all", range(8)),
        ("0", [0]),
        ("-1", [7]),
        ("-8", [0]),
        ("3,0,3", [0, 3]),
        ("0:4", [0, 1, 2, 3]),
        ("6:99", [6, 7]),
        ("0-2,7", [0, 1, 2, 7]),
        ("7-7", [7]),
        ("!1-6", [0, 7]),
        ("gpus=1-2,hosts=0", [1, 2]),
        ("-2:", [6, 7]),
        ("::2", [0, 2, 4, 6]),
        ("0,6:", [0, 6, 7]),
        ("!3", [0, 1, 2, 4, 5, 6, 7]),
        ("!0:2", [2, 3, 4, 5, 6, 7]),
        ("!0,-1", [1, 2, 3, 4, 5, 6]),
        ("!hosts=1", [0, 1, 2, 3]),
        ("!failed", [0, 2, 3, 4, 5, 7]),
        ("gpus=0:2,hosts=1", [4, 5]),
        ("gpus=-1", [3, 7]),
        ("gpus=-2:", [2, 3, 6, 7]),
        ("gpus=::3", [0, 3, 4, 7]),
        ("failed", [1, 6]),
        ("ok", [0, 2, 3, 4, 5, 7]),
        ("half", [4, 5, 6, 7]),
        ("half[0,-1]", [4, 7]),
        ("half[gpus=1:3]", [5, 6]),
        ("half[!0]", [5, 6, 7]),
        ("trainers[4:]", [4, 5]),
    ],
)
def test_ranks(text: str, ranks: list[int]) -> None:
    selected = select(text)
    assert selected.region.ranks() == tuple(ranks)
    assert selected.mesh == parse(text).mesh or selected.mesh == "main"


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("all", {"hosts": 2, "gpus": 4}),
        ("0:4", {"ranks": 4}),
        ("0", {"ranks": 1}),
        ("trainers[0,3]", {"gpus": 2}),
        ("gpus=0", {"hosts": 2}),
        ("gpus=0:1", {"hosts": 2, "gpus": 1}),
        ("gpus=0,hosts=1", {}),
    ],
)
def test_shape(text: str, sizes: dict[str, int]) -> None:
    assert select(text).region.sizes == sizes


@given(st.lists(st.integers(-8, 7) | st.builds(slice, *[st.none() | st.integers(-9, 9)] * 2), min_size=1, max_size=4))
def test_plain_ranks_select_as_list_indexes_do(items: list[int | slice]) -> None:
    words = [str(item) if isinstance(item, int) else f"{item.start}:{item.stop}".replace("None", "") for item in items]
    parts = [[list(range(8))[item]] if isinstance(item, int) else list(range(8))[item] for item in items]
    if all(parts):
        assert select(",".join(words)).region.ranks() == tuple(sorted(set().union(*parts)))
    else:
        with pytest.raises(SelectionError, match="selects nothing"):
            select(",".join(words))


# --- outcomes of the last cell ---


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a,b", ["a", "b"]),
        ("a[0,1] , b[gpus=0]", ["a[0,1]", "b[gpus=0]"]),
        *((text, [text]) for text in ("a", "a[0,1]", "0,1", "all", "hosts=0,gpus=1", "all,failed", "a,0", "a,")),
    ],
)
def test_selectors_of_several_meshes(text: str, parts: list[str]) -> None:
    assert split_by_mesh(text) == parts


def test_several_meshes_are_for_cells() -> None:
    with pytest.raises(SelectionError, match="only %%mesh cells take several meshes"):
        parse("a,b")


def test_interrupted_ranks_have_not_failed() -> None:
    last = LastCell(failed=frozenset({1, 6}), interrupted=frozenset({6}), ok=frozenset({0}))
    assert list(select("failed", last).region.ranks()) == [1]
    with pytest.raises(SelectionError, match="no rank failed in the last cell"):
        select("failed", LastCell(failed=frozenset({1}), interrupted=frozenset({1})))


def test_not_failed_selects_all_if_nothing_failed() -> None:
    assert len(select("!failed", LastCell()).region) == 8


def test_outcomes_belong_to_the_mesh_of_the_last_cell() -> None:
    on_trainers = LastCell(failed=frozenset({5}), mesh="trainers")
    assert select("trainers[failed]", on_trainers) == SelectedRegion("trainers", MESHES["trainers"].pick({5}))
    with pytest.raises(
        SelectionError, match=r"the last cell ran on 'trainers', not on 'main'; write 'trainers\[failed\]'"
    ):
        select("failed", on_trainers)


# --- errors ---


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "expected a selector such as all, 0, 0:4, !3 or gpus=0, but the selector ends"),
        ("   ", 4, "the selector ends"),
        ("0,", 3, "expected a number, a range such as 0-3 or a slice such as 0:4, but the selector ends"),
        ("0,,1", 3, "found ','"),
        ("0,!3", 3, "found '!'"),
        ("!!3", 2, "found '!'"),
        ("!", 2, "the selector ends"),
        ("0 1", 3, "expected a comma or the end, but found '1'"),
        ("0:4:0", 5, "the step 0 must be 1 or more"),
        ("::-1", 3, "the step -1 must be 1 or more"),
        ("0:1:2:3", 6, "found ':'"),
        ("gpus=", 6, "expected a number, a range"),
        ("gpus=0,3", 8, "expected a dimension, as in gpus=0:4, but found '3'"),
        ("gpus=0,hosts", 13, "expected '=', but the selector ends"),
        ("=0", 1, "found '='"),
        ("trainers[", 10, "the selector ends"),
        ("trainers[]", 10, "found ']'"),
        ("trainers[0", 11, "expected ']', but the selector ends"),
        ("trainers[0]]", 12, "found ']'"),
        ("trainers[0][1]", 12, "found '['"),
        ("trainers[half]", 10, "'half' is not a selector; the words are all, failed, ok, changed"),
        ("trainers[faild]", 10, "Did you mean 'failed'?"),
        ("!trainers", 2, "'trainers' is not a selector"),
        ("[0]", 1, "found '['"),
        ("1.5", 2, "unexpected character '.'"),
        ("__import__('os')", 11, "unexpected character '('"),
        ("0;1", 2, "unexpected character ';'"),
        ("0\x001", 2, r"unexpected character '\x00'"),
        ("3-1", 3, "a range must ascend, as 0-3 does; 3-1 does not"),
        ("-3-1", 4, "a range must ascend"),
        ("0-", 2, "unexpected character '-'"),
        ("- 1", 1, "unexpected character '-'"),
        ("٣", 1, "unexpected character"),  # a digit, but not one of ours
        pytest.param("9" * 5000, 1, f"the number '{60 * '9'}…' is too large", id="endless number"),
        ("0:" + "9" * 16, 3, "is too large"),
        pytest.param("[" * 100_000, 1, "found '['", id="many brackets"),
        pytest.param("!" * 100_000, 2, "found '!'", id="many marks"),
    ],
)
def test_invalid_syntax(text: str, column: int, problem: str) -> None:
    with pytest.raises(SelectionError, match=re.escape(problem)) as caught:
        parse(text)
    assert f", column {column}: " in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("8", 1, r"rank 8 is out of range; the mesh 'main' has 8 ranks \(hosts=2, gpus=4\)"),
        ("0,-9", 3, "rank -9 is out of range"),
        ("8:", 1, "rank 8: selects nothing; the mesh 'main' has 8 ranks"),
        ("0,5:5:2", 3, "rank 5:5:2 selects nothing"),
        ("!:", 1, "excludes all ranks"),
        ("!all", 1, "excludes all ranks"),
        ("gpu=0", 1, "unknown dimension 'gpu'; the mesh 'main' has 8 ranks .* Did you mean 'gpus'"),
        ("gpus=4", 6, "gpus 4 is out of range; the size of gpus is 4"),
        ("gpus=-5", 6, "gpus -5 is out of range"),
        ("0-99", 1, "rank 99 is out of range; the mesh 'main' has 8 ranks"),
        ("gpus=0-4", 6, "gpus 4 is out of range"),
        ("hosts=0,gpus=4:", 14, "gpus 4: selects nothing; the size of gpus is 4"),
        ("gpus=0,gpus=1", 8, "dimension 'gpus' is given twice"),
        ("trainers[hosts=0]", 10, r"unknown dimension 'hosts'; the mesh 'trainers' has 6 ranks \(gpus=6\)"),
        ("half[4]", 6, r"rank 4 is out of range; the mesh 'half' has 4 ranks \(gpus=4\)"),
        (
            "trainer",
            1,
            "unknown mesh 'trainer'; the meshes are 'main', 'trainers', 'half'. Did you mean 'trainers'",
        ),
        ("al", 1, "unknown mesh 'al'; .* Did you mean 'all'"),
        (" xyz[0]", 2, "unknown mesh 'xyz'; the meshes are 'main', 'trainers', 'half'$"),
        ("gpus", 1, "unknown mesh 'gpus'; .*it is a dimension; write gpus=0"),
        ("changed", 1, "the last cell changed no variable"),
        pytest.param("x" * 100_000, 1, "unknown mesh 'x{60}…'", id="endless name"),
        pytest.param("x" * 100_000 + "=0", 1, "unknown dimension 'x{60}…'", id="endless dimension"),
    ],
)
def test_selectors_without_ranks(text: str, column: int, problem: str) -> None:
    with pytest.raises(SelectionError, match=problem) as caught:
        select(text)
    assert f", column {column}: " in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("failed", "no rank failed in the last cell"),
        ("ok", "no rank succeeded in the last cell"),
        ("changed", "the last cell changed no variable"),
    ],
)
def test_an_outcome_without_ranks(word: str, problem: str) -> None:
    with pytest.raises(SelectionError, match=problem):
        select(word, LastCell())


def test_no_mesh_at_all() -> None:
    with pytest.raises(SelectionError, match="unknown mesh 'main'; no mesh is up"):
        select("all", meshes={})


@given(st.text(alphabet="all failed!:,=[]-0123gpushot", max_size=20) | st.text())
def test_any_text_gives_ranks_or_a_selection_error(text: str) -> None:
    try:
        region = select(text).region
    except SelectionError:
        return
    assert 1 <= len(region) <= 8
