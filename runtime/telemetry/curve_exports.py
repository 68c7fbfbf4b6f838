"""The history of curves as a table, and as files for other programs: Parquet, CSV, TensorBoard.

Files are written part by part, so an export needs little memory, however long the run was.
"""

from __future__ import annotations

import contextlib
import csv
import math
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from meshbook.runtime.telemetry.curve_files import COLUMNS, NO_PYARROW, Saved, arrow_table
from meshbook.runtime.telemetry.curve_table import CurvePiece
from meshbook.runtime.telemetry.points import NOTEBOOK, HistoryError

SUFFIXES = (".parquet", ".csv")


class MetricHistory:
    """All points of metrics, as a table with the columns metric, run, rank, step, time (UTC) and value.

    `metrics` and `ranks`: those to include; empty or None: all. `other_runs`: those of other meshes, of which only the
    notebook's points are included. pyarrow, Polars and DuckDB read it directly, by Arrow's
    C interface.
    """

    def __init__(
        self,
        saved: Saved,
        metrics: Collection[str] = (),
        ranks: Collection[int] | None = None,
        other_runs: Collection[str] = (),
    ) -> None:
        self._saved = saved
        self._other_runs = set(other_runs)
        self._metrics = set(metrics)
        self._ranks = None if ranks is None else set(ranks)
        self._table: Any = None

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table. HistoryError if pyarrow is not installed."""
        if self._table is None:
            self._table = _concatenate(self.tables())
        return self._table

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame."""
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return a polars.DataFrame."""
        import polars

        return polars.from_arrow(self.to_arrow())

    def tables(self) -> Iterator[Any]:
        """Yield the points as one Arrow table per part, the oldest first."""
        for table in self._saved.tables():
            yield self._select(table)

    def pieces(self) -> Iterator[CurvePiece]:
        """Yield the points by curve, the oldest first."""
        for piece in self._saved.all_pieces():
            if self._has(piece):
                yield piece

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self.to_arrow().num_rows)

    def __repr__(self) -> str:
        names = ", ".join(sorted(self._metrics)) or "all metrics"
        return f"<history of {names}; .to_arrow(), .to_pandas(), .to_polars()>"

    def _has(self, piece: CurvePiece) -> bool:
        return (
            (not self._metrics or piece.metric in self._metrics)
            and (self._ranks is None or piece.rank in self._ranks)
            and (piece.run not in self._other_runs or piece.rank == NOTEBOOK)
        )

    def _select(self, table: Any) -> Any:
        import pyarrow
        import pyarrow.compute as compute

        def has_any(column: str, values: Collection[Any], kind: Any) -> Any:
            found = table.column(column).cast(kind)
            return compute.is_in(found, value_set=pyarrow.array(sorted(values), kind))

        if self._metrics:
            table = table.filter(has_any("metric", self._metrics, pyarrow.string()))
        if self._ranks is not None:
            table = table.filter(has_any("rank", self._ranks, pyarrow.int32()))
        if self._other_runs:
            is_elsewhere = has_any("run", self._other_runs, pyarrow.string())
            of_notebook = has_any("rank", [NOTEBOOK], pyarrow.int32())
            table = table.filter(compute.or_(compute.invert(is_elsewhere), of_notebook))
        return table

    # -- exports -------------------------------------------------------------------

    def write(self, path: Path) -> int:
        """Write the points to a new file, `.parquet` or `.csv`, and return their number.

        An existing file is replaced once the new one is whole. HistoryError for another ending, without pyarrow (a CSV
        file needs it only where parts exist), or if the file cannot be written.
        """
        if path.suffix not in SUFFIXES:
            raise HistoryError(f"cannot export curves to {path}: its name must end in {' or '.join(SUFFIXES)}")
        temporary = path.with_name(f".{path.name}.new")
        try:
            count = self._write_parquet(temporary) if path.suffix == ".parquet" else self._write_csv(temporary)
            temporary.replace(path)
        except OSError as error:
            raise HistoryError(f"curves cannot be exported to {path}: {error.strerror or error}") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
        return count

    def _write_parquet(self, path: Path) -> int:
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise HistoryError(NO_PYARROW) from None
        count = 0
        with parquet.ParquetWriter(path, _plain(arrow_table(())).schema, compression="zstd") as writer:
            for table in self.tables():
                writer.write_table(_plain(table))
                count += table.num_rows
        return count

    def _write_csv(self, path: Path) -> int:
        count = 0
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for piece in self.pieces():
                names = piece.metric, piece.run, piece.rank
                points = zip(piece.steps.tolist(), piece.times.tolist(), piece.values.tolist(), strict=True)
                writer.writerows([*names, *point] for point in points)
                count += len(piece.values)
        return count

    def write_tensorboard(self, folder: Path) -> int:
        """Write the points as event files for TensorBoard, a folder for each run and rank; return their number.

        HistoryError if the package `tensorboard` is not installed, or the files cannot be written.
        """
        try:
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError:
            raise HistoryError("an export to TensorBoard needs its package; run: pip install tensorboard") from None
        name = f"events.out.tfevents.{time.time_ns()}"
        count = 0
        try:
            for piece in self.pieces():
                path = folder / piece.run / ("notebook" if piece.rank == NOTEBOOK else f"rank {piece.rank}") / name
                path.parent.mkdir(parents=True, exist_ok=True)
                # Open for one piece only: a run may have more ranks than a process may have open files. SummaryWriter
                # cannot append to a file, and has a thread for each.
                with open(path, "ab") as file:
                    records = RecordWriter(file)
                    for event in _events(piece, is_first=not file.tell()):
                        records.write(event.SerializeToString())
                count += len(piece.values)
        except OSError as error:
            raise HistoryError(f"curves cannot be exported to {folder}: {error}") from error
        return count


def _events(piece: CurvePiece, *, is_first: bool) -> Iterator[Any]:
    """Yield TensorBoard's events for the points of a curve; the first one of a file is its version."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    if is_first:
        yield Event(wall_time=piece.times[0], file_version="brain.Event:2")
    for step, at, value in zip(piece.steps.tolist(), piece.times.tolist(), piece.values.tolist(), strict=True):
        summary = Summary(value=[Summary.Value(tag=piece.metric, simple_value=value)])
        yield Event(wall_time=at, step=math.floor(step), summary=summary)


def _concatenate(tables: Iterator[Any]) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise HistoryError(NO_PYARROW) from None
    return pyarrow.concat_tables(tables).unify_dictionaries().combine_chunks()


def _plain(table: Any) -> Any:
    """Return the table with names as strings: the dictionaries of parts differ."""
    import pyarrow

    for column in ("metric", "run"):
        place = table.schema.get_field_index(column)
        table = table.set_column(place, column, table.column(column).cast(pyarrow.string()))
    return table
