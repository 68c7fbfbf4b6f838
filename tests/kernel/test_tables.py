"""Tables between the notebook and its ranks: scattered by rows, gathered, pushed, compared, and as values of cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.kernel.conftest import KernelNotebook

pytest.importorskip("duckdb")  # and with it the other packages of tables; .ci/requirements.py leaves them out
pytestmark = [pytest.mark.kernel, pytest.mark.without_torch]


@pytest.fixture(scope="module")
def notebook(make_notebook: Any) -> Iterator[KernelNotebook]:
    with make_notebook("meshbook") as notebook:
        notebook.run("%mesh up --gpus 3")
        notebook.run("import duckdb, numpy as np, polars as pl, pyarrow as pa")
        notebook.run(
            "frame = pl.DataFrame({'n': range(7), 's': [f'row {i}' for i in range(7)], 'gap': [1, None] * 3 + [2]})"
        )
        yield notebook


def test_a_frame_is_scattered_by_rows_under_its_own_name(notebook: KernelNotebook) -> None:
    notebook.run("mesh.scatter(frame)")
    assert notebook.run("%%mesh\n(*frame.shape, frame['s'][0])").result == (
        "[0] (3, 3, 'row 0')\n[1] (2, 3, 'row 3')\n[2] (2, 3, 'row 5')"
    )
    assert notebook.run("mesh.gather('frame').equals(frame)").result == "True"
    assert "0       (3, 3) n Int64, s String, gap Int64" in notebook.run("%mesh whos").plain


def test_what_duckdb_finds_arrives_as_an_arrow_table(notebook: KernelNotebook) -> None:
    notebook.run("mesh.scatter('found', duckdb.sql('select n, s from frame where n > 2 order by n'))")
    assert notebook.run("%%mesh\nfound['n'].to_pylist()").result == "[0] [3, 4]\n[1] [5]\n[2] [6]"
    assert (
        notebook.run(
            "mesh.gather('found').equals(pa.table(frame[3:, :2].to_arrow()).cast(mesh.gather('found').schema))"
        ).result
        == "True"
    )


def test_tables_are_pushed_changed_and_compared(notebook: KernelNotebook) -> None:
    notebook.run("mesh.push(table=frame.to_arrow(), frame=frame, lazy=frame.lazy().filter(pl.col('n') > 4))")
    assert notebook.run("%%mesh\nlazy.collect()['n'].to_list()").result == "[0-2] [5, 6]"
    assert "table is the same on ranks 0-2" in notebook.run("%mesh diff table").plain
    notebook.run("%%mesh 1\nimport polars as pl\nframe = frame.with_columns(pl.col('n') * 2, s=pl.lit('x'))")
    told = notebook.run("%mesh diff frame").plain
    assert "frame differs in 2 of 3 parts: ranks 0,2 agree, rank 1 differs" in told
    assert "largest difference 6 at [6]: 6 on ranks 0,2, 12 on rank 1; 6 of 7 numbers differ" in told


def test_a_large_table_is_a_value_of_its_cell(notebook: KernelNotebook) -> None:
    notebook.run(
        "%%mesh -o result -q\nimport numpy as np\nimport polars as pl\npl.DataFrame({'x': np.arange(400_000) + rank})"
    )
    assert notebook.run("result[2].outcome.value.note").result == "'values of more than 1 MiB stay on their rank'"
    assert (
        notebook.run(
            "[(type(each), each['x'].sum()) for each in result.values] == "
            "[(pl.DataFrame, (np.arange(400_000) + rank).sum()) for rank in range(3)]"
        ).result
        == "True"
    )
    notebook.run("%%mesh -o result -q\npl.DataFrame({'x': [rank]})")
    assert notebook.run("pl.concat(result.values)['x'].to_list()").result == "[0, 1, 2]"


def test_frames_travel_with_a_cell(notebook: KernelNotebook) -> None:
    notebook.run("part = frame[2:5]")
    notebook.run("%%mesh --push part --pull part@cat\npart = part.with_columns(rank=rank)")
    assert notebook.run("part.shape, part['rank'].unique().sort().to_list()").result == "((9, 4), [0, 1, 2])"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (
            "mesh.scatter('x', frame.lazy())",
            "cannot scatter x: a LazyFrame is a lazy plan without rows",
        ),
        ("mesh.scatter(frame.head())", "the data has no name in the notebook"),
        ("twin = frame\nmesh.scatter(frame)", "the data has several names (frame, twin) in the notebook"),
        (
            "mesh.push(q=duckdb.sql('select 1'))",
            "q cannot be pickled: TypeError: a DuckDB query belongs to its connection",
        ),
    ],
)
def test_what_cannot_be_moved(notebook: KernelNotebook, code: str, problem: str) -> None:
    assert problem in notebook.run_failing(code).error["evalue"]
