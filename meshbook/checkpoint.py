"""Checkpoints of training: the state of all ranks in one folder, written completely or not at all.

    from meshbook import checkpoint

    state = {"model": model, "optimizer": optimizer, "epoch": 7}
    checkpoint.save(state, "runs/digits", step=7, keep=3)  # on every rank
    step = checkpoint.load(state, "runs/digits")           # later, perhaps on more ranks, or on fewer

`torch.distributed.checkpoint` reads and writes. It writes a tensor that all ranks have once, and sharded tensors
(DTensor, FSDP) in parts, which it joins for any number of ranks on reading. This module makes it safe for ranks that
may die at any moment: a checkpoint is written to a temporary folder, and renamed once every rank has written its part.
With several hosts, the folder must be on storage that all of them share.

Without a folder, these functions use that of the setting MESHBOOK_CHECKPOINT_DIR, by default `checkpoints`. `meshbook
run` sets it, so that a notebook that was interrupted resumes when it is run again:

    start = checkpoint.load(state) + 1 if checkpoint.latest() is not None else 0
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshbook.runtime.config import current_settings
from meshbook.runtime.errors import MeshbookError

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["CheckpointError", "latest", "load", "save", "steps"]

NAME = re.compile(r"step-(\d+)(\.old)?")
OLD = ".old"  # the end of the name of a checkpoint while it is replaced
METADATA = ".metadata"  # torch.distributed.checkpoint writes this file last


class CheckpointError(MeshbookError):
    """A checkpoint could not be written or read; the text names it, and the ranks that failed."""

    page = "checkpointerror"


def save(
    state: dict[str, Any],
    folder: str | os.PathLike[str] | None = None,
    *,
    step: int,
    keep: int | None = None,
    alone: bool = False,
) -> Path:
    """Write a checkpoint of this step, on every rank of the process group; returns its path once it is complete.

    `state` has, by name, models and optimizers (any object with a `state_dict`), tensors, and other picklable values,
    nested in dicts and lists. A value that is the same on all ranks has the same name on all, and is written once; a
    value of only one rank needs a name of its own. A DistributedDataParallel model is saved as the model inside it.
    `keep`: how many of the newest checkpoints stay in the folder. A checkpoint of the same step is replaced.

    Without a process group, or with `alone`, this process writes its own state, and waits for no other rank.

    Raises CheckpointError on every rank if one cannot write; the previous checkpoints stay then. If a rank dies
    meanwhile, the others get an error as from any collective, or wait until `heal()` or an abort frees them. ValueError
    for an invalid step or count.
    """
    if step < 0 or (keep is not None and keep < 1):
        raise ValueError(f"step must be at least 0 and keep at least 1, not step={step!r}, keep={keep!r}")
    place = _folder_of(folder) / f"step-{step}"
    ranks = _Ranks(alone)
    with _checkpoint_errors(f"checkpoint {place} was not saved"):
        draft = ranks.first(lambda: _make_draft(place, ranks.are_many))
        try:
            _write(state, draft, ranks)
            ranks.first(lambda: _publish(draft, place, keep))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    return place


def load(
    state: dict[str, Any],
    folder: str | os.PathLike[str] | None = None,
    *,
    step: int | None = None,
    alone: bool = False,
) -> int:
    """Read the newest checkpoint of the folder, or that of a step, into `state`; returns its step.

    Call it on every rank of the process group; without one, or with `alone`, on this one. Tensors are read in place,
    models and optimizers load their saved state, and other values in `state` are replaced. Only names in `state` are
    read. There may be more ranks than saved it, or fewer.

    Raises CheckpointError if there is no checkpoint, or it lacks a name of `state`.
    """
    ranks = _Ranks(alone)
    # Only the first rank chooses, so that all ranks read the same checkpoint.
    found: int | None = ranks.first(lambda: latest(folder) if step is None else step)
    place = _place_of(_folder_of(folder), found)
    if found is None or not (place / METADATA).exists():
        there = ", ".join(map(str, steps(folder))) or "none"
        wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise CheckpointError(f"{wanted} in {place.parent}; available steps: {there}")
    with _checkpoint_errors(f"checkpoint {place} was not loaded"):
        _read(state, place, ranks)
    return found


def latest(folder: str | os.PathLike[str] | None = None) -> int | None:
    """Return the step of the newest complete checkpoint; None if there is none."""
    return max(steps(folder), default=None)


def steps(folder: str | os.PathLike[str] | None = None) -> list[int]:
    """Return the steps of all complete checkpoints in a folder, in order; empty if the folder does not exist."""
    try:
        entries = list(_folder_of(folder).iterdir())
    except FileNotFoundError:
        return []
    named = ((NAME.fullmatch(entry.name), entry) for entry in entries)
    return sorted({int(match[1]) for match, entry in named if match and (entry / METADATA).exists()})


def _folder_of(folder: str | os.PathLike[str] | None) -> Path:
    return Path(current_settings().checkpoint_dir if folder is None else folder).absolute()


def _place_of(folder: Path, step: int | None) -> Path:
    """Return the path of a checkpoint: that of the replaced one, if the process was killed before the new one came."""
    place = folder / f"step-{step}"
    old = place.with_name(place.name + OLD)
    return old if not place.exists() and (old / METADATA).exists() else place


class _Ranks:
    """The ranks that save or load together."""

    def __init__(self, alone: bool) -> None:
        import torch.distributed as dist  # weight: imported only when a checkpoint is used

        self._dist: Any = dist
        self.are_many = not alone and dist.is_available() and dist.is_initialized()

    def first(self, do: Callable[[], Any]) -> Any:
        """Call `do` on the first rank, and return its value, or raise its error, on all ranks."""
        if not self.are_many:
            return do()
        shared: list[Any] = [None, None]
        if self._dist.get_rank() == 0:
            try:
                shared[0] = do()
            except Exception as error:
                shared[1] = f"rank 0: {type(error).__name__}: {error}"
        self._dist.broadcast_object_list(shared, src=0)
        if shared[1] is not None:
            raise CheckpointError(shared[1])
        return shared[0]


def _make_draft(place: Path, are_many: bool) -> Path:
    """Make an empty folder beside `place` that `steps` ignores; with several ranks also delete abandoned drafts."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if are_many:
        for left in place.parent.glob(".step-*"):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))


def _publish(draft: Path, place: Path, keep: int | None) -> None:
    """Move the draft to its place, and delete the oldest checkpoints."""
    umask = os.umask(0o22)
    os.umask(umask)
    draft.chmod(0o777 & ~umask)  # mkdtemp makes folders that only the owner can read
    old = place.with_name(place.name + OLD)
    if place.exists():
        if old.exists():
            _drop(old)
        place.rename(old)  # until the next rename it is the checkpoint of this step
    draft.rename(place)
    _sync(place.parent)
    if old.exists():
        _drop(old)
    if keep is not None:
        for step in steps(place.parent)[:-keep]:
            if step != int(place.name.removeprefix("step-")):
                _drop(_place_of(place.parent, step))


def _drop(place: Path) -> None:
    """Remove a checkpoint; renamed first, so that no half-removed one is ever found."""
    gone = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    place.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Sync the folder, so that the rename survives a power failure, as the files do."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(state: dict[str, Any], draft: Path, ranks: _Ranks) -> None:
    from torch.distributed.checkpoint import FileSystemWriter, save

    with _no_warning():
        save(_unwrapped(state), storage_writer=FileSystemWriter(draft), no_dist=not ranks.are_many)


def _read(state: dict[str, Any], place: Path, ranks: _Ranks) -> None:
    from torch.distributed.checkpoint import FileSystemReader, load
    from torch.optim import Optimizer

    reader = FileSystemReader(place)
    saved = reader.read_metadata().state_dict_metadata
    for name, value in state.items():
        if isinstance(value, Optimizer) and any(key.startswith(f"{name}.state.") for key in saved):
            _fill(value)
    read = _unwrapped(state)
    with _no_warning():
        load(read, storage_reader=reader, no_dist=not ranks.are_many)
    for name, value in read.items():
        if state[name] is not value and not _is_wrapper(state[name]):
            state[name] = value


@contextlib.contextmanager
def _no_warning() -> Iterator[None]:
    """Suppress torch's warning on saving or loading without a process group: that is requested or documented here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def _unwrapped(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state with DistributedDataParallel models replaced by the models inside them."""
    return {name: value.module if _is_wrapper(value) else value for name, value in state.items()}


def _is_wrapper(value: Any) -> bool:
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(value, DistributedDataParallel)


def _fill(optimizer: Optimizer) -> None:
    """Give an optimizer the state that it has after its first step: only state that exists can be read into."""
    import torch

    if optimizer.state:
        return
    given = [(group, group.get("lr")) for group in optimizer.param_groups]
    parameters = [parameter for group, _ in given for parameter in group["params"] if parameter.requires_grad]
    gradients = [parameter.grad for parameter in parameters]
    for group, lr in given:
        group["lr"] = torch.zeros_like(lr) if isinstance(lr, torch.Tensor) else 0.0
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    for group, lr in given:
        group["lr"] = lr


@contextlib.contextmanager
def _checkpoint_errors(what: str) -> Iterator[None]:
    """Convert errors into a CheckpointError that names the failed action and the ranks."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:  # not a subclass of Exception
        failed = "\n".join(
            f"rank {rank}: {_format_error(raised)}" for rank, (raised, _) in sorted(error.failures.items())
        )
        raise CheckpointError(f"{what}\n{failed}") from error
    except Exception as error:
        raise CheckpointError(f"{what}\n{_format_error(error)}") from error


def _format_error(error: BaseException) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
