"""The costs of a cell: the table of the ranks, and its summary."""

import pytest

from meshbook.magics.results.costs import CostTable, summarise_costs
from meshbook.runtime.cells.outcome import (
    CellCost,
)
from tests.magics.results.test_result import COST

# Costs

COSTS = {
    0: CellCost(wall=2.81, cpu=0.0123, peak_rss=1_234_000_000),
    1: CellCost(wall=3.21, cpu=3.1, peak_rss=999_600_000),
    2: CellCost(wall=2.81, cpu=125, peak_rss=10**6, peak_gpu_memory=31 * 10**9),
}


def test_the_table_of_costs():
    assert repr(CostTable(COSTS)).splitlines() == [
        "       rank       wall        CPU   peak RSS   peak GPU",
        "          0     2.81 s      12 ms     1.2 GB          -",
        "          1     3.21 s     3.10 s     1.0 GB          -",
        "          2     2.81 s 2 min 05 s     1.0 MB      31 GB",
        "wall 3.21 s · slowest r1 +0.40 s over the median · peak mem r2 31 GB",
    ]
    assert CostTable(COSTS)._repr_html_().count("<tr>") == 4


def test_of_many_ranks_the_table_has_the_slowest():
    table = repr(CostTable({rank: CellCost(rank, 0, 0) for rank in range(100)}))

    assert "… 36 faster ranks not shown" in table
    assert table.splitlines()[1].split()[0] == "36"


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ({}, "no ranks"),
        ({3: COST}, "wall 1.00 s · peak mem r3 1.0 GB"),
        (
            {0: CellCost(0.01, 0, 0), 1: CellCost(0.03, 0, 0)},
            "wall 30 ms · slowest r1 +10 ms over the median · peak mem r0 0 B",
        ),
    ],
)
def test_summary_of_costs(costs, expected):
    assert summarise_costs(costs) == expected


def test_without_the_cost_of_some_ranks_the_time_is_that_of_the_cell():
    assert summarise_costs(COSTS, 5.0) == "wall 5.00 s · peak mem r2 31 GB"
