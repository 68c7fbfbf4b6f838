"""Arrays, Arrow tables, Polars and pandas frames as bodies: equal, out of the stream, and no more than they show."""

from __future__ import annotations

import datetime
import decimal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from polars.testing import assert_frame_equal, assert_series_equal

from meshbook.runtime.errors import PickleError
from meshbook.runtime.wire.pickling import dumps, dumps_detached, loads

ROWS = 2400
RANDOM = np.random.default_rng(7)
SHORT, LONG = ["a", "bb", None], ["", None, "longer than the twelve bytes of a view"]
NOON = datetime.datetime(2026, 1, 1, 12)


@pytest.fixture(autouse=True)
def _no_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages name the modules that other tests of this process have written and imported."""
    monkeypatch.setattr("meshbook.runtime.wire.pickling.find_edits", tuple)


def carried(value: Any) -> tuple[Any, int, int]:
    """What arrives, the bytes of the stream, and those beside it."""
    body = [bytes(part) for part in dumps(value, "a value")]
    return loads([body[0], *map(bytearray, body[1:])], "a value"), len(body[0]), sum(map(len, body[1:]))


# --- Arrow ---

ARRAYS = {
    "int64": pa.array(RANDOM.integers(0, 9, ROWS)),
    "int16 with nulls": pa.array([1, None, 3] * (ROWS // 3), pa.int16()),
    "bool": pa.array([True, None, False] * (ROWS // 3)),
    "string": pa.array(SHORT * (ROWS // 3)),
    "large_binary": pa.array([b"a", None, b"bcd"] * (ROWS // 3), pa.large_binary()),
    "string_view": pa.array((SHORT + LONG) * (ROWS // 6), pa.string_view()),
    "dictionary": pa.array(SHORT * (ROWS // 3)).dictionary_encode(),
    "timestamp": pa.array([NOON, None, NOON] * (ROWS // 3), pa.timestamp("us", "Europe/Rome")),
    "decimal": pa.array([decimal.Decimal("1.25"), None] * (ROWS // 2), pa.decimal128(9, 2)),
    "fixed_size_binary": pa.array([b"abc", None] * (ROWS // 2), pa.binary(3)),
    "list of strings": pa.array([["a", None], None, [], ["bcd"]] * (ROWS // 4)),
    "large_list of structs": pa.array([[{"x": 1}], None] * (ROWS // 2), pa.large_list(pa.struct([("x", pa.int8())]))),
    "fixed_size_list": pa.array([[1.0, 2.0], None] * (ROWS // 2), pa.list_(pa.float32(), 2)),
    "struct": pa.array([{"x": 1, "y": "a"}, None] * (ROWS // 2)),
    "map": pa.array([[("k", 1)], None] * (ROWS // 2), pa.map_(pa.string(), pa.int8())),
    "null": pa.nulls(ROWS),
    "run ends": pa.RunEndEncodedArray.from_arrays([ROWS // 2, ROWS], [1, 2]),
    "uuid": pa.array([bytes(16)] * ROWS, pa.uuid()),
    "tensors": pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((ROWS, 2, 2))),
}


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize(("start", "count"), [(0, ROWS), (0, 300), (1501, 299), (1504, 0), (0, 0)])
def test_arrow_arrays_and_their_slices_arrive_as_they_are(name: str, start: int, count: int) -> None:
    part = ARRAYS[name].slice(start, count)
    arrived, stream, beside = carried(part)
    assert arrived.type == part.type
    assert arrived.equals(part)
    arrived.validate(full=True)
    assert stream < 1500
    assert beside <= ARRAYS[name].get_total_buffer_size() * count // ROWS + 2 * 4096


def test_the_bytes_of_a_slice_are_its_share() -> None:
    columns = {name: array for name, array in ARRAYS.items() if name != "run ends"}
    table = pa.table({name: pa.chunked_array([array] * 20) for name, array in columns.items()})
    _, _, whole = carried(table)
    arrived, _, eighth = carried(table.slice(ROWS * 5 + 3, ROWS * 20 // 8))
    assert arrived.equals(table.slice(ROWS * 5 + 3, ROWS * 20 // 8))
    assert eighth < whole / 7
    for part in (table.to_batches()[3].slice(9, 300), table["string"].slice(9, ROWS * 2), table.schema, pa.scalar(3)):
        assert carried(part)[0].equals(part)


def test_arrow_memory_is_not_copied_on_the_way_out() -> None:
    numbers = np.arange(ROWS * 100.0)
    part = pa.table({"x": numbers}).slice(ROWS, ROWS * 10)
    body = dumps(part, "a table")
    assert np.shares_memory(np.frombuffer(body[1]), numbers)
    assert loads(body, "a table").equals(part)


# --- Polars ---

SERIES = {
    "numbers": pl.Series(RANDOM.random(ROWS)),
    "strings": pl.Series((SHORT + LONG) * (ROWS // 6)),
    "booleans": pl.Series([True, None, False] * (ROWS // 3)),
    "categories": pl.Series(SHORT * (ROWS // 3), dtype=pl.Categorical),
    "enum": pl.Series(SHORT * (ROWS // 3), dtype=pl.Enum(["bb", "c", "a"])),
    "nothing": pl.Series([None] * ROWS),
    "times": pl.Series([NOON, None] * (ROWS // 2), dtype=pl.Datetime("ns", "Europe/Rome")),
    "durations": pl.Series([datetime.timedelta(1), None] * (ROWS // 2), dtype=pl.Duration("ms")),
    "decimals": pl.Series([decimal.Decimal("1.25"), None] * (ROWS // 2), dtype=pl.Decimal(9, 2)),
    "lists": pl.Series([["a"], None, []] * (ROWS // 3), dtype=pl.List(pl.Categorical)),
    "arrays": pl.Series([[1, 2], None] * (ROWS // 2), dtype=pl.Array(pl.Float32, 2)),
    "structs": pl.Series([{"a": 1, "b": "x"}, None] * (ROWS // 2)),
    "wide integers": pl.Series([1 << 100, None] * (ROWS // 2), dtype=pl.Int128),  # Arrow has none
}


@pytest.mark.parametrize("name", SERIES)
@pytest.mark.parametrize(("start", "count"), [(0, ROWS), (1501, 299), (0, 0)])
def test_polars_frames_and_their_slices_arrive_as_they_are(name: str, start: int, count: int) -> None:
    frame = pl.DataFrame({name: SERIES[name], "n": pl.Series(range(ROWS))})[start : start + count]
    arrived, stream, beside = carried({"frame": frame, "again": frame, "series": frame[name]})
    assert_frame_equal(arrived["frame"], frame)
    assert_series_equal(arrived["series"], frame[name])
    assert arrived["again"] is arrived["frame"]
    assert stream < 3000
    whole = carried(pl.DataFrame({name: SERIES[name], "n": pl.Series(range(ROWS))}))[2]
    assert beside <= 2 * whole * count // ROWS + 8 * 4096


def test_polars_frames_of_several_chunks_and_of_none_arrive() -> None:
    chunks = pl.concat([pl.DataFrame(SERIES)] * 3, rechunk=False)[100 : ROWS * 2]
    for frame in (
        chunks,
        pl.DataFrame(),
        pl.DataFrame({"a": []}, schema={"a": pl.String}),
        chunks.filter(pl.lit(False)),
    ):
        assert_frame_equal(carried(frame)[0], frame)
    assert carried(chunks.lazy().select("numbers"))[0].collect().equals(chunks.select("numbers"))


def test_a_polars_frame_of_objects_is_refused_and_not_sent_as_addresses() -> None:
    for frame in (pl.DataFrame({"o": [object()]}), pl.Series("o", [{1, 2}], dtype=pl.Object)):
        with pytest.raises(PickleError, match="serializing data of type Object is not supported"):
            dumps(frame, "a frame")


def test_polars_frames_travel_without_pyarrow_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # an import of it fails
    monkeypatch.setattr(pl.DataFrame, "to_arrow", lambda *_, **__: __import__("pyarrow"))
    frame = pl.DataFrame(SERIES)
    arrived, stream, _ = carried(frame)
    assert stream < 300
    assert_frame_equal(arrived, frame)


# --- NumPy, pandas, torch ---

MATRIX = RANDOM.random((ROWS, 4))
NUMPY = {
    "dense": MATRIX,
    "fortran": np.asfortranarray(MATRIX),
    "transposed": MATRIX.T,
    "strided": MATRIX[::2],
    "columns": MATRIX[:, 1:3],
    "backwards": MATRIX[::-1],
    "broadcast": np.broadcast_to(np.arange(4.0), (ROWS, 4)),
    "dates": np.arange(ROWS).astype("M8[s]"),
    "dates of Fortran": np.asfortranarray(np.arange(ROWS * 2).astype("m8[ns]").reshape(-1, 2)),
    "structured": np.zeros(ROWS, [("a", "i4"), ("b", "f8", 2)])[::3],
    "texts": np.full(ROWS, "text")[::2],
    "other endian": MATRIX.astype(">f4")[:, 0],
    "masked": np.ma.MaskedArray(MATRIX, MATRIX > 0.5, fill_value=-1.0, hard_mask=True),
    "masked nowhere": np.ma.MaskedArray(MATRIX),
}


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_arrays_arrive_as_they_are_and_out_of_the_stream(name: str) -> None:
    array = NUMPY[name]
    arrived, stream, _ = carried(array)
    assert type(arrived) is type(array)
    assert arrived.dtype == array.dtype
    assert arrived.flags.fnc == array.flags.fnc
    assert stream < 700
    np.testing.assert_array_equal(np.ma.getdata(arrived), np.ma.getdata(array))
    if name.startswith("masked"):
        np.testing.assert_array_equal(np.ma.getmaskarray(arrived), np.ma.getmaskarray(array))
        assert (arrived.fill_value, arrived.hardmask) == (array.fill_value, array.hardmask)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 4)),
        np.array([{"a": 1}, None], dtype=object),
        np.full(ROWS, "text", np.dtypes.StringDType()),
        np.array([(1, "x")] * ROWS, [("n", "i4"), ("o", "O")])[::2],
        np.float64(3),
        np.arange(3),
    ],
)
def test_other_numpy_values_arrive_too(array: Any) -> None:
    arrived, _, _ = carried(array)
    assert (type(arrived), arrived.dtype, arrived.shape) == (type(array), array.dtype, array.shape)
    assert arrived.tolist() == array.tolist()


def test_of_a_mapped_file_the_part_is_sent_that_is_meant(tmp_path: Path) -> None:
    np.save(tmp_path / "matrix.npy", MATRIX)
    arrived, stream, beside = carried(np.load(tmp_path / "matrix.npy", mmap_mode="r")[100:300])
    assert type(arrived) is np.ndarray
    assert (stream < 300, beside) == (True, MATRIX[100:300].nbytes)
    np.testing.assert_array_equal(arrived, MATRIX[100:300])


def test_pandas_frames_arrive_as_they_are_and_out_of_the_stream() -> None:
    columns = {"n": range(ROWS), "x": MATRIX[:, 0], "s": SHORT * (ROWS // 3), "c": pd.Categorical(SHORT * (ROWS // 3))}
    frame = pd.DataFrame(columns, index=pd.date_range("2026-01-01", periods=ROWS, freq="h"))
    for part in (frame, frame.iloc[900:1500], frame.iloc[:0]):
        arrived, stream, _ = carried(part)
        pd.testing.assert_frame_equal(arrived, part)
        assert stream < 4000
    assert carried(frame.iloc[900:1500])[2] < carried(frame)[2] / 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.bool])
@pytest.mark.parametrize("shape", [(64, 64), (0, 3), ()])
def test_tensors_of_all_kinds_arrive(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(dtype)
    arrived, stream, _ = carried(tensor)
    assert (arrived.dtype, arrived.shape, stream < 1000) == (dtype, tensor.shape, True)
    assert torch.equal(
        arrived.float() if dtype.is_floating_point else arrived,
        torch.ones(shape).to(arrived.float().dtype if dtype.is_floating_point else dtype),
    )


def test_a_query_of_duckdb_is_not_sent() -> None:
    import duckdb  # not above: what is there when tests begin is never collected, which its bindings call a leak

    with pytest.raises(PickleError, match="belongs to its connection: send"):
        dumps({"query": duckdb.sql("select 1")}, "an argument")


def test_tables_of_a_push_and_a_pull_go_the_same_way() -> None:
    frame = pl.DataFrame({"x": MATRIX[:, 0]})
    stream, *buffers = dumps_detached({"frame": frame, "strided": MATRIX[::2]}, "values")
    assert len(stream) < 1500
    assert sum(memoryview(part).nbytes for part in buffers) == frame.estimated_size() + MATRIX.nbytes // 2
