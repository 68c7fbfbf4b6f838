"""The whole history of curves, in files of the run's folder: every point, while memory keeps only an excerpt.

    curves/part-000012.parquet   older points, in the order of arrival; DuckDB and Polars read `part-*.parquet`
    curves/newest                points that are in no part yet, as pickles; it begins with the number of the next part
    curves/media-*               the latest histograms and images, a pickle each
    curves/meshes                the mesh of each run, as a pickle

Only Parquet needs pyarrow. Without it, all points stay in `newest`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from meshbook.runtime.config import open_private
from meshbook.runtime.telemetry.curve_media import MediaKey, Medium
from meshbook.runtime.telemetry.curve_table import CurvePiece
from meshbook.runtime.telemetry.points import HistoryError

NEWEST = "newest"
PARTS = "part-*.parquet"
MESHES = "meshes"
MOST_PENDING = 1_000_000  # points; on a full disk, more are dropped
COLUMNS = ("metric", "run", "rank", "step", "time", "value")
NO_PYARROW = "a history needs pyarrow, which is not installed; run: pip install pyarrow"


class Saved(NamedTuple):
    """All points of a history at one moment: the parts, and what is in no part yet."""

    parts: Sequence[Path]
    pieces: Sequence[CurvePiece]

    def tables(self) -> Iterator[Any]:
        """Yield the points as Arrow tables, the oldest first. HistoryError without pyarrow."""
        for path in self.parts:
            yield read_part(path)
        yield arrow_table(self.pieces)

    def all_pieces(self) -> Iterator[CurvePiece]:
        """Yield the points by curve, the oldest first."""
        for path in self.parts:
            yield from pieces_of(read_part(path))
        yield from self.pieces


class CurveFiles:
    """The files of one run, for one thread at a time. `folder` is created at the first point."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._newest: IO[bytes] | None = None
        self._pieces: list[CurvePiece] = []  # what `newest` has
        self.pending = 0  # points in `newest`
        self._readable_bytes = 0  # of `newest`, in which the last record may be incomplete
        self.has_pyarrow = True  # until an import fails
        self.trouble = ""  # why points are missing on disk

    def restore(self) -> Iterator[CurvePiece]:
        """Yield all points that an earlier controller has left, and go on after them."""
        for path in self.parts():
            try:
                yield from pieces_of(read_part(path))
            except HistoryError as error:  # a damaged part, or pyarrow is missing here
                self.trouble = f"points from before this attach are missing in curves: {error}"
        pieces = list(self._read_newest())
        yield from pieces
        self._pieces, self.pending = pieces, sum(len(piece.values) for piece in pieces)
        if pieces:
            # What follows an incomplete record could not be read.
            with contextlib.suppress(OSError):
                os.truncate(self.folder / NEWEST, self._readable_bytes)

    def append(self, pieces: list[CurvePiece]) -> None:
        """Write new points."""
        self.pending += sum(len(piece.values) for piece in pieces)
        if self.has_pyarrow:
            self._pieces += pieces
        try:
            file = self._open_newest()
            start = file.tell()
            # As bytes: pickling a small array takes ten times as long.
            data = pickle.dumps([(*piece[:3], *(column.tobytes() for column in piece[3:])) for piece in pieces])
            if file.write(data) != len(data):
                file.seek(file.truncate(start))
                raise OSError("the disk is full")
        except OSError as error:
            self.trouble = f"points of curves could not be written to {self.folder}: {error}"

    @property
    def can_write_part(self) -> bool:
        """Whether there are points for a part."""
        return self.has_pyarrow and bool(self._pieces)

    def write_part(self) -> None:
        """Move the points of `newest` to a new part, if pyarrow is installed."""
        try:
            import pyarrow.parquet as parquet  # weight: half a second, and only runs that log points need it
        except ImportError:
            self.has_pyarrow = False  # all points stay in `newest`
            self._pieces = []
            return
        path = self.folder / f"part-{self._next_part():06}.parquet"
        temporary = path.with_suffix(".new")
        try:
            parquet.write_table(arrow_table(self._pieces), temporary, compression="zstd")
            temporary.rename(path)  # readers see whole parts only
        except Exception as error:  # a full disk, or whatever else pyarrow raises: memory stays bounded
            self.trouble = f"points of curves could not be written to {path}: {error}"
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            if self.pending < MOST_PENDING:
                return
        self.close()
        self._pieces, self.pending = [], 0

    def parts(self) -> list[Path]:
        """Return the parts, the oldest first."""
        return sorted(self.folder.glob(PARTS))

    def saved(self) -> Saved:
        """Return everything that has been added."""
        return Saved(self.parts(), self._pieces[:] if self.has_pyarrow else list(self._read_newest()))

    def write_media(self, key: MediaKey, medium: Medium) -> None:
        """Replace the last histogram or image of a metric, run and rank."""
        self._replace(self._media_file(key), (key, medium))

    def remove_media(self, key: MediaKey) -> None:
        """Remove the last histogram or image of a metric, run and rank."""
        with contextlib.suppress(OSError):
            (self.folder / self._media_file(key)).unlink(missing_ok=True)

    def read_media(self) -> Iterator[tuple[MediaKey, Medium]]:
        """Yield the last histograms and images with their keys."""
        for path in sorted(self.folder.glob("media-*"), key=lambda path: path.stat().st_mtime_ns):
            with contextlib.suppress(EOFError, pickle.UnpicklingError):
                yield pickle.loads(path.read_bytes())

    def write_meshes(self, meshes: Mapping[str, str]) -> None:
        """Write the mesh of each run."""
        self._replace(MESHES, dict(meshes))

    def read_meshes(self) -> dict[str, str]:
        """Return the mesh of each run, by the run's name."""
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
            found: dict[str, str] = pickle.loads((self.folder / MESHES).read_bytes())
            return found
        return {}

    def close(self) -> None:
        """Close the file of new points; the next `append` opens it again. Idempotent."""
        if self._newest is not None:
            self._newest.close()
            self._newest = None

    # -- internals -----------------------------------------------------------------

    @staticmethod
    def _media_file(key: MediaKey) -> str:
        return f"media-{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}"

    def _replace(self, name: str, content: Any) -> None:
        """Replace a file of the folder by a pickle."""
        temporary = self.folder / f"new-{name}"
        with contextlib.suppress(OSError):  # a full disk: only the next controller misses it
            self.folder.mkdir(mode=0o700, exist_ok=True)
            with open(temporary, "wb", opener=open_private) as file:
                pickle.dump(content, file)
            temporary.rename(self.folder / name)

    def _next_part(self) -> int:
        parts = self.parts()
        return int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0

    def _open_newest(self) -> IO[bytes]:
        if self._newest is None:
            self.folder.mkdir(mode=0o700, exist_ok=True)
            path = self.folder / NEWEST
            if self._is_stale(path):
                path.unlink(missing_ok=True)
            self._newest = open(path, "ab", buffering=0, opener=open_private)  # noqa: SIM115  # `close` closes it
        if not self._newest.tell():  # also after a full disk had no room for these bytes
            self._newest.write(pickle.dumps(self._next_part()))
        return self._newest

    def _is_stale(self, path: Path) -> bool:
        """Whether a file of new points is missing, or its points are in a part."""
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError), open(path, "rb") as file:
            return bool(pickle.load(file) < self._next_part())
        return True

    def _read_newest(self) -> Iterator[CurvePiece]:
        path = self.folder / NEWEST
        if self._is_stale(path):
            return
        with open(path, "rb") as file, contextlib.suppress(EOFError, pickle.UnpicklingError):
            # The last record may be incomplete: the controller was killed, or another thread is writing it.
            pickle.load(file)
            while True:
                self._readable_bytes = file.tell()
                for metric, run, rank, *columns in pickle.load(file):
                    yield CurvePiece(metric, run, rank, *map(np.frombuffer, columns))


def read_part(path: Path) -> Any:
    """Return a part as an Arrow table. HistoryError without pyarrow, or for a damaged file."""
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise HistoryError(NO_PYARROW) from None
    try:
        return parquet.read_table(os.fspath(path), memory_map=False)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise HistoryError(f"{path} cannot be read: {error}") from error


def arrow_table(pieces: Iterable[CurvePiece]) -> Any:
    """Return the points as an Arrow table with the columns metric, run, rank, step, time (UTC) and value.

    HistoryError without pyarrow.
    """
    try:
        import pyarrow
    except ImportError:
        raise HistoryError(NO_PYARROW) from None
    pieces = list(pieces)
    lengths = [len(piece.values) for piece in pieces]

    def repeated(names: list[str]) -> Any:
        places: dict[str, int] = {}
        codes = [places.setdefault(name, len(places)) for name in names]
        indices: Any = np.repeat(np.array(codes, np.int32), lengths)
        return pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(list(places), pyarrow.string()))

    def joined(arrays: list[Any]) -> Any:
        return np.concatenate(arrays) if arrays else np.empty(0)

    microseconds = (joined([piece.times for piece in pieces]) * 1e6).round().astype(np.int64)
    return pyarrow.table(
        {
            "metric": repeated([piece.metric for piece in pieces]),
            "run": repeated([piece.run for piece in pieces]),
            "rank": np.repeat(np.array([piece.rank for piece in pieces], np.int32), lengths),
            "step": joined([piece.steps for piece in pieces]),
            "time": pyarrow.array(microseconds, pyarrow.timestamp("us")),
            "value": joined([piece.values for piece in pieces]),
        }
    )


def pieces_of(table: Any) -> Iterator[CurvePiece]:
    """Yield the points of an Arrow table by curve, each in the order of the table."""
    if not table.num_rows:
        return
    columns = {name: table.column(name).combine_chunks() for name in COLUMNS}
    metrics, runs = (columns[name].dictionary_encode() for name in ("metric", "run"))
    ranks = columns["rank"].to_numpy(zero_copy_only=False).astype(np.int64)
    # One number for each curve: sorting rows of three takes twenty times as long.
    low, span = int(ranks.min()), int(ranks.max() - ranks.min()) + 1
    codes = [each.indices.to_numpy(zero_copy_only=False).astype(np.int64) for each in (metrics, runs)]
    curves = (codes[0] * len(runs.dictionary) + codes[1]) * span + ranks - low
    order: Any = np.argsort(curves, kind="stable")
    firsts: Any = np.flatnonzero(np.diff(curves[order], prepend=-1))
    times = columns["time"].cast("int64").to_numpy() / 1e6
    steps, values = (columns[name].to_numpy() for name in ("step", "value"))
    for rows in np.split(order, firsts[1:]):
        metric, run = (
            each.dictionary[int(code[rows[0]])].as_py() for each, code in zip((metrics, runs), codes, strict=True)
        )
        yield CurvePiece(metric, run, int(ranks[rows[0]]), steps[rows], times[rows], values[rows])
