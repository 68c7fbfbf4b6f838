"""The result of a cell: how it is indexed, and how values, tensors, rich values and costs are shown."""

import gc
import pickle

import numpy as np
import pytest
import torch

from meshbook.magics.results.costs import CostTable
from meshbook.magics.results.result import MeshResult, Sources
from meshbook.runtime.cells.outcome import (
    CellCost,
    CellOutcome,
    CellValue,
    Frame,
    RankError,
    TensorSummary,
)
from meshbook.runtime.geometry import Extent
from meshbook.runtime.telemetry.output import DisplayChunk
from meshbook.runtime.telemetry.spool import DisplaySpool

COST = CellCost(wall=1.0, cpu=0.5, peak_rss=10**9)


def value(content, **mime):
    names = {name.replace("__", "/"): each for name, each in mime.items()}
    bundle = {"text/plain": repr(content), **names}
    return CellOutcome(COST, CellValue(bundle, type(content).__name__, pickled=pickle.dumps(content)))


def tensor(content, device="cpu", name="Tensor"):
    numbers = content.double()
    statistics = (numbers.min().item(), numbers.mean().item(), numbers.max().item())
    summary = TensorSummary(name, tuple(content.shape), str(content.dtype), device, *statistics)
    return CellOutcome(COST, CellValue({"text/plain": repr(content)}, name, summary, pickle.dumps(content)))


def error(**more):
    frames = (Frame("<cell 3>", 2, "<module>"),)
    return CellOutcome(COST, error=RankError("raised", "ValueError", "bad\nworse", frames, **more))


def result(*outcomes, fetch=None, **dims):
    region = Extent.of(**(dims or {"gpus": len(outcomes)})).region
    sources = Sources(lambda rank, stream: f"{stream} of {rank}", fetch=fetch)
    return MeshResult(region, dict(enumerate(outcomes)), sources)


NOTHING = CellOutcome(COST)


SHOWN = {"text/plain": "shown"}


NEW = {"text/plain": "new"}


SQUARES = [value(rank * rank) for rank in range(4)]


# Reading


@pytest.mark.parametrize("count", [1, 3])
def test_the_error_for_a_missing_attribute_lists_those_of_the_result(count):
    ranks = result(*SQUARES[:count])
    with pytest.raises(AttributeError, match=r"; `.values` has those of all ranks, `\[0\].value` that of one rank"):
        _ = ranks.value
    with pytest.raises(AttributeError, match=r"has no attribute 'values'; its value is `.value`"):
        _ = ranks[0].values
    with pytest.raises(AttributeError, match=r"'errno'$"):
        _ = ranks.errno
    assert not hasattr(ranks, "_repr_html_")
    assert not hasattr(ranks[0], "_repr_html_")


def test_a_value_that_cannot_be_unpickled_here_says_why():
    odd = CellOutcome(COST, CellValue({"text/plain": "odd"}, "Odd", pickled=b"c__main__\nnobody_has_this\n."))
    for read in (lambda: result(odd)[0].value, lambda: result(odd).values):
        with pytest.raises(AttributeError, match="nobody_has_this"):
            read()


def test_ranks_are_items_in_order():
    squares = result(*SQUARES)

    assert len(squares) == 4
    assert [each.rank for each in squares] == [0, 1, 2, 3]
    assert squares[3].value == 9
    assert squares[-1].value == 9
    assert squares[np.int64(2)].value == 4
    assert squares.values == [0, 1, 4, 9]


def test_a_rank_has_its_text_its_cost_and_its_error():
    each = result(SQUARES[0], error())[1]

    assert (each.stdout, each.stderr, each.cost) == ("stdout of 1", "stderr of 1", COST)
    assert each.error.type_name == "ValueError"
    assert each.value is None


@pytest.mark.parametrize("rank", [9, -5])
def test_the_error_for_an_unknown_rank_lists_the_ranks(rank):
    with pytest.raises(IndexError, match=rf"no rank {rank} in this result; it has ranks 0-3"):
        result(*SQUARES)[rank]


def test_the_error_for_anything_but_a_rank_says_how_to_index():
    with pytest.raises(TypeError, match="not by 'gpus'"):
        result(*SQUARES)["gpus"]


def test_several_ranks():
    squares = result(*SQUARES, hosts=2, gpus=2)

    assert squares[1:3].values == [1, 4]
    assert squares[::-1].ranks == (0, 1, 2, 3)
    with pytest.raises(IndexError, match="no rank was selected"):
        squares[9:]


@pytest.mark.parametrize(
    ("wanted", "ranks"),
    [
        (slice(4, 6), (4, 5)),
        (slice(3, None), (4, 5, 7)),
        (slice(None, 4), (2,)),
        (slice(-2, None), (5, 7)),
        (slice(None, -1), (2, 4, 5)),
        (slice(None, None, 2), (2, 4)),
        (slice(None), (2, 4, 5, 7)),
    ],
)
def test_a_slice_is_by_rank_as_an_index_is(wanted, ranks):
    region = Extent.of(gpus=8).region.pick([2, 4, 5, 7])
    part = MeshResult(region, dict.fromkeys((2, 4, 5, 7), SQUARES[0]), Sources(lambda rank, stream: ""))

    assert part[wanted].ranks == ranks
    assert [part[rank].rank for rank in ranks] == list(ranks)


def test_dimensions():
    squares = result(*SQUARES, hosts=2, gpus=2)

    assert squares.at(hosts=1, gpus=0).rank == 2
    assert squares.slice(gpus=1).ranks == (1, 3)
    assert squares.slice(gpus=1).at(hosts=1).value == 9
    assert squares.slice(hosts=slice(0, 1)).extent == Extent.of(hosts=1, gpus=2)
    assert repr(squares.slice(hosts=1)) == "[2] 4\n[3] 9"
    assert squares[{"hosts": 1, "gpus": 0}].value == 4
    assert squares[{"gpus": 1}].values == [1, 9]
    assert squares[{"gpus": slice(0, 1)}].extent == Extent.of(hosts=2, gpus=1)


def test_rows_have_the_place_of_each_rank():
    assert result(*SQUARES, hosts=2, gpus=2).rows()[2] == {"rank": 2, "hosts": 1, "gpus": 0, "value": 4}
    losses = [value({"loss": rank / 2}) for rank in range(2)]
    assert result(*losses).rows() == [{"rank": 0, "gpus": 0, "loss": 0.0}, {"rank": 1, "gpus": 1, "loss": 0.5}]


def test_coordinates_that_leave_several_ranks():
    with pytest.raises(ValueError, match="2 ranks match; also give gpus"):
        result(*SQUARES, hosts=2, gpus=2).at(hosts=1)


def test_a_rank_that_left_nothing_is_not_in_the_result():
    part = MeshResult(Extent.of(gpus=3).region, {0: SQUARES[0], 2: SQUARES[2]}, Sources(lambda rank, stream: ""))

    assert part.ranks == (0, 2)
    with pytest.raises(IndexError, match="it has ranks 0,2"):
        part[1]


def test_a_value_that_stayed_is_fetched_once():
    fetched = []
    stayed = CellOutcome(COST, CellValue({"text/plain": "big"}, "list", note="too large: 3 GB"))
    each = result(stayed, fetch=lambda rank: fetched.append(rank) or [rank])[0]

    assert (each.value, each.value, fetched) == ([0], [0], [0])


def test_a_value_out_of_reach_says_why():
    stayed = CellOutcome(COST, CellValue({"text/plain": "big"}, "list", note="too large: 3 GB"))

    with pytest.raises(LookupError, match="the value of rank 0 was not sent: too large: 3 GB"):
        _ = result(stayed)[0].value


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ([NOTHING, NOTHING], False),
        ([NOTHING, value(None)], False),
        ([NOTHING, value(0)], True),
        ([error()], False),
    ],
)
def test_has_value(outcomes, expected):
    assert result(*outcomes).has_value is expected


def test_the_errors_there_are():
    assert list(result(SQUARES[0], error()).errors) == [1]


# Stacking


def test_tensors_stack_to_a_tensor():
    stacked = result(*(tensor(torch.full((2,), float(rank))) for rank in range(3))).stack()

    assert torch.equal(stacked, torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]))


@pytest.mark.parametrize("make", [lambda n: n, lambda n: np.float32(n), lambda n: np.array(n)])
def test_numbers_and_arrays_stack_to_an_array(make):
    stacked = result(*(value(make(rank)) for rank in range(3))).stack()

    assert isinstance(stacked, np.ndarray)
    assert stacked.tolist() == [0, 1, 2]


def test_to_numpy():
    weights = torch.ones(2, requires_grad=True)

    assert result(tensor(weights), tensor(weights)).to_numpy().tolist() == [[1, 1], [1, 1]]
    assert result(*SQUARES).to_numpy().tolist() == [0, 1, 4, 9]


def test_stacking_without_a_value_names_the_ranks():
    with pytest.raises(ValueError, match="no value on ranks 1-2"):
        result(SQUARES[0], error(), NOTHING).stack()


def test_the_cost_of_a_result_is_its_table():
    assert result(*SQUARES).cost == CostTable(dict.fromkeys(range(4), COST))


# Displays


def test_displays_are_in_their_last_state():
    chunks = [
        DisplayChunk("", "mesh", 0, SHOWN, {}, display_id="a"),
        DisplayChunk("", "mesh", 0, SHOWN, {"x": 1}),
        DisplayChunk("", "mesh", 0, NEW, {}, display_id="a", update=True),
        DisplayChunk("", "mesh", 0, NEW, {}, display_id="never shown", update=True),
    ]
    spool = DisplaySpool()
    for chunk in chunks:
        spool.add(chunk)
    sources = Sources(lambda rank, stream: "", lambda rank: spool.read() if rank == 0 else [])
    ranks = MeshResult(Extent.of(gpus=2).region, dict(enumerate(SQUARES[:2])), sources)
    assert [(each.data, each.metadata) for each in ranks[0].displays] == [(NEW, {}), (SHOWN, {"x": 1})]
    assert ranks[1].displays == []


@pytest.mark.parametrize("room", [0, 300, 1 << 20])
def test_displays_are_kept_in_memory_or_beyond(room):
    spool = DisplaySpool(room)
    chunks = [DisplayChunk("", "mesh", 0, {"text/plain": str(number)}, {}) for number in range(5)]
    for chunk in chunks:
        spool.add(chunk)
        assert spool.read()[-1] == chunk
    assert spool.read() == chunks


def test_displays_are_kept_up_to_a_limit():
    spool = DisplaySpool(memory_bytes=1000, limit=10_000)
    for number in range(100):
        spool.add(DisplayChunk("", "mesh", 0, {"text/plain": f"{number}" * 100}, {}))
    assert 10 < len(spool.read()) < 50


def test_values_are_released_once_no_result_has_them() -> None:
    released: list[str] = []
    sources = Sources(lambda rank, stream: "", release=lambda: released.append("released"))
    result = MeshResult(Extent.of(gpus=2).region, {0: SQUARES[0], 1: SQUARES[1]}, sources)
    part, one = result.slice(gpus=slice(0, 1)), result[1]
    del result, sources, part
    gc.collect()
    assert released == []
    del one
    gc.collect()
    assert released == ["released"]
