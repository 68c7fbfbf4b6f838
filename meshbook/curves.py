"""Curves of metrics for programs that log by other libraries, and their history.

`SummaryWriter` replaces torch.utils.tensorboard's; `LightningLogger`, `TransformersCallback` and `AccelerateTracker`
are for the libraries of these names, which are imported with them. All of them call `meshbook.log`.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshbook.runtime.hosts.session import CURVES, running_session
from meshbook.runtime.telemetry.loggable import BINS, Histogram, loggable
from meshbook.runtime.telemetry.point_recorder import flush, log
from meshbook.runtime.telemetry.points import HistoryError

if TYPE_CHECKING:  # weight: numpy
    from meshbook.runtime.telemetry.curve_exports import MetricHistory

    # Made at their first use, because they need their libraries.
    AccelerateTracker: type[Any]
    LightningLogger: type[Any]
    TransformersCallback: type[Any]

__all__ = [
    "AccelerateTracker",
    "HistoryError",
    "LightningLogger",
    "SummaryWriter",
    "TransformersCallback",
    "export",
    "folder",
    "history",
]

logger = logging.getLogger(__name__)
SUFFIXES = (".parquet", ".csv", "")  # of exports; a name without one is a folder for TensorBoard


def history(*metrics: str) -> MetricHistory:
    """Return all points of these metrics that this process's run has logged; without names, of all metrics.

    In a notebook `mesh.history("loss")` does the same. Raises HistoryError for a metric without points, or if this
    process has no run of its own, such as a rank.
    """
    session = running_session()
    if session is None:
        raise HistoryError("this process has no run, so it has no history; read it where the mesh was spawned")
    return session.metric_history(metrics)


def export(path: str | Path, *metrics: str) -> int:
    """Write the history to a `.parquet` or a `.csv` file, or to a folder for TensorBoard; return the number of points.

    A path without a suffix is a folder, which gets event files for each run and rank. Raises HistoryError if a library
    is missing, or the files cannot be written.
    """
    found, path = history(*metrics), Path(path)
    return found.write(path) if path.suffix else found.write_tensorboard(path)


def folder() -> Path:
    """Return the folder with the history of this process's run: DuckDB reads `part-*.parquet` there.

    It is removed at the end of the run. Raises HistoryError if this process has no run.
    """
    session = running_session()
    if session is None:
        raise HistoryError("this process has no run, so it has no history")
    return session.folder.path / CURVES


class SummaryWriter:
    """A replacement for `torch.utils.tensorboard.SummaryWriter`, whose data becomes curves on every rank.

    It takes the same arguments. Folders, wall times and flush intervals have no effect. Of the methods, it has those
    for scalars, histograms, images and figures; the others log a warning, once, and do nothing.
    """

    def __init__(self, log_dir: Any = None, *unused: Any, **options: Any) -> None:
        self.log_dir = log_dir
        self._warned: set[str] = set()

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: float | None = None,
        walltime: float | None = None,
        **unused: Any,
    ) -> None:
        """Log a number, or a tensor with one element; TypeError for anything else."""
        log({tag: scalar_value}, step=global_step)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: float | None = None,
        walltime: float | None = None,
    ) -> None:
        """Log several numbers as `main_tag/name`."""
        log({f"{main_tag}/{name}": value for name, value in tag_scalar_dict.items()}, step=global_step)

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: float | None = None,
        bins: Any = None,
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Log the distribution of values. `bins` is a number of bins; the names of TensorBoard's ways mean 64."""
        count = bins if isinstance(bins, int) else max_bins or BINS
        log({tag: Histogram(values, count)}, step=global_step)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: float | None = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Log an image: uint8, or floats from 0 to 1. `dataformats` is the order of its dimensions: CHW, HWC or HW."""
        log({tag: _to_pixels(img_tensor, dataformats)}, step=global_step)

    def add_figure(
        self, tag: str, figure: Any, global_step: float | None = None, close: bool = True, walltime: float | None = None
    ) -> None:
        """Log a figure of matplotlib as an image, and close it."""
        log({tag: figure}, step=global_step)
        if close:
            from matplotlib import pyplot

            pyplot.close(figure)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("add_"):
            raise AttributeError(f"SummaryWriter has no attribute {name!r}")

        def ignore(*arguments: Any, **options: Any) -> None:
            if name not in self._warned:
                self._warned.add(name)
                logger.warning("SummaryWriter.%s() is not supported by meshbook, and has no effect", name)

        return ignore

    def get_logdir(self) -> Any:
        """Return the folder that the writer was given, which stays unused."""
        return self.log_dir

    def flush(self) -> None:
        """Send what has been logged."""
        flush()

    def close(self) -> None:
        """Send what has been logged; more may be logged later."""
        flush()

    def __enter__(self) -> SummaryWriter:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _to_pixels(image: Any, formats: str) -> Any:
    """Return an image as uint8 of shape [height, width, channels], or [height, width]."""
    import numpy

    if hasattr(image, "detach"):
        image = image.detach().cpu().numpy()
    pixels: Any = numpy.asarray(image)
    formats = formats.upper()
    if sorted(formats) not in (sorted("CHW"), sorted("HW")) or pixels.ndim != len(formats):
        raise ValueError(f"an image of shape {pixels.shape} does not have the dimensions {formats!r}")
    pixels = pixels.transpose([formats.index(label) for label in "HWC" if label in formats])
    if pixels.dtype != numpy.uint8:
        pixels = (pixels.astype(numpy.float64).clip(0, 1) * 255).round().astype(numpy.uint8)
    return pixels


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that can be logged: libraries pass texts and settings among them."""
    found = {}
    for name, value in values.items():
        try:
            found[name] = loggable(name, value)
        except (TypeError, ValueError) as error:
            logger.debug("%s is not logged: %s", name, error)
    return found


# -- classes of other libraries ------------------------------------------------------------


@functools.cache
def _make_lightning_logger() -> type:
    try:
        from lightning.pytorch.loggers.logger import Logger
    except ImportError:
        from pytorch_lightning.loggers.logger import Logger

    class LightningLogger(Logger):
        """A logger for Lightning: `Trainer(logger=meshbook.curves.LightningLogger())`. Every rank logs."""

        @property
        def name(self) -> str:
            return "meshbook"

        @property
        def version(self) -> str:
            return ""

        def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
            """Log metrics at a step."""
            # Lightning adds the epoch to each call.
            log(_numbers({name: value for name, value in metrics.items() if name != "epoch"}), step=step)

        def log_hyperparams(self, params: Any, *arguments: Any, **options: Any) -> None:
            """Do nothing: settings are no curves."""

        def finalize(self, status: str) -> None:
            flush()

    return LightningLogger


@functools.cache
def _make_transformers_callback() -> type:
    from transformers import TrainerCallback

    class TransformersCallback(TrainerCallback):
        """A callback for transformers: `Trainer(..., callbacks=[meshbook.curves.TransformersCallback()])`.

        Every rank logs what the trainer reports, as `train/loss` and `eval/loss`.
        """

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **unused: Any
        ) -> None:
            named = {_with_group(name): value for name, value in (logs or {}).items() if name != "epoch"}
            log(_numbers(named), step=state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
            flush()

    return TransformersCallback


def _with_group(name: str) -> str:
    group, mark, rest = name.partition("_")
    return f"{group}/{rest}" if mark and group in ("eval", "test") else f"train/{name}"


@functools.cache
def _make_accelerate_tracker() -> type:
    from accelerate.tracking import GeneralTracker

    class AccelerateTracker(GeneralTracker):
        """A tracker for accelerate: `Accelerator(log_with=meshbook.curves.AccelerateTracker())`.

        `accelerator.log()` does nothing except on the main process; other ranks can call `meshbook.log`.
        """

        name = "meshbook"
        requires_logging_directory = False
        main_process_only = False

        @property
        def tracker(self) -> Any:
            return log

        def log(self, values: Mapping[str, Any], step: int | None = None, **unused: Any) -> None:
            """Log values at a step."""
            log(_numbers(values), step=step)

        def finish(self) -> None:
            flush()

    return AccelerateTracker


_MAKERS = {
    "AccelerateTracker": _make_accelerate_tracker,
    "LightningLogger": _make_lightning_logger,
    "TransformersCallback": _make_transformers_callback,
}


def __getattr__(name: str) -> Any:
    if name not in _MAKERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = _MAKERS[name]()
    made.__module__, made.__qualname__ = __name__, name  # so that it pickles by its name
    return made


def __dir__() -> Sequence[str]:
    return sorted(__all__)
