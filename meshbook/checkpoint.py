"""Checkpoints of training: what all ranks hold, in one folder, whole or not at all.

    from meshbook import checkpoint

    state = {"model": model, "optimizer": optimizer, "epoch": 7}
    checkpoint.save(state, "runs/digits", step=7, keep=3)  # on every rank
    step = checkpoint.load(state, "runs/digits")           # later, perhaps on more ranks, or on fewer

The reading and writing is `torch.distributed.checkpoint`'s: a tensor that all ranks have is written once, sharded ones
(DTensor, FSDP) are written in parts and put together for whatever ranks there are when they are read. Here is what
makes it fit for ranks that may die at any moment: a checkpoint is written beside its place and put there by a rename
once every rank has written its part. On several hosts the folder has to be one that all of them share.
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

from meshbook.runtime.errors import MeshbookError

if TYPE_CHECKING:
    from torch.optim import Optimizer

__all__ = ["CheckpointError", "latest", "load", "save", "steps"]

NAME = re.compile(r"step-(\d+)")
METADATA = ".metadata"  # what torch.distributed.checkpoint writes last


class CheckpointError(MeshbookError):
    """A checkpoint could not be written or read; the text names it, and the ranks that failed."""


def save(
    state: dict[str, Any], folder: str | os.PathLike[str], *, step: int, keep: int | None = None, alone: bool = False
) -> Path:
    """Write a checkpoint of this step, on every rank of the process group; returns its path once it is complete.

    `state` has, by name, models and optimizers (whatever has a `state_dict`), tensors, and whatever else can be
    pickled, nested in dicts and lists. What is the same on all ranks goes by the same name, and is written once; what
    only one rank has needs a name of its own. A DistributedDataParallel model is saved as the one in it. `keep`: how
    many of the newest checkpoints stay in the folder. A checkpoint of the same step is replaced.

    Without a process group, or with `alone`, this process writes what it has, and waits for nobody.

    Raises CheckpointError, on every rank, where one cannot write; what was there before stays then. Where a
    rank dies meanwhile, the others get an error as from any collective, or wait until `heal()` or an abort frees them.
    ValueError for a step or a count that cannot be.
    """
    if step < 0 or (keep is not None and keep < 1):
        raise ValueError(f"step counts from 0, and keep from 1: not step={step!r}, keep={keep!r}")
    place = Path(folder).absolute() / f"step-{step}"
    ranks = _Ranks(alone)
    with _told(f"checkpoint {place} was not saved"):
        draft = ranks.first(lambda: _make_draft(place, ranks.are_many))
        try:
            _write(state, draft, ranks)
            ranks.first(lambda: _publish(draft, place, keep))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    return place


def load(state: dict[str, Any], folder: str | os.PathLike[str], *, step: int | None = None, alone: bool = False) -> int:
    """Read the newest checkpoint of the folder, or that of a step, into `state`; returns its step.

    On every rank of the process group; without one, or with `alone`, on this one. Tensors are read into those that are
    there, models and optimizers load what was saved of them, anything else in `state` is replaced. Only what
    `state` names is read. There may be more ranks than saved it, or fewer.

    Raises CheckpointError where there is no checkpoint, or it lacks something that `state` names.
    """
    ranks = _Ranks(alone)
    # One looks, so that all read the same.
    found: int | None = ranks.first(lambda: latest(folder) if step is None else step)
    place = Path(folder).absolute() / f"step-{found}"
    if found is None or not (place / METADATA).exists():
        there = ", ".join(map(str, steps(folder))) or "none"
        wanted = "no checkpoint" if step is None else f"no checkpoint of step {step}"
        raise CheckpointError(f"there is {wanted} in {Path(folder).absolute()}: it has steps {there}")
    with _told(f"checkpoint {place} was not loaded"):
        _read(state, place, ranks)
    return found


def latest(folder: str | os.PathLike[str]) -> int | None:
    """The step of the newest checkpoint that is complete; None where there is none."""
    return max(steps(folder), default=None)


def steps(folder: str | os.PathLike[str]) -> list[int]:
    """The steps of all complete checkpoints in a folder, in order; none where there is no such folder."""
    try:
        entries = list(Path(folder).iterdir())
    except FileNotFoundError:
        return []
    named = ((NAME.fullmatch(entry.name), entry) for entry in entries)
    return sorted(int(match[1]) for match, entry in named if match and (entry / METADATA).exists())


class _Ranks:
    """Those that save or load together."""

    def __init__(self, alone: bool) -> None:
        import torch.distributed as dist  # weight: whoever has no process group need not wait for it

        self._dist: Any = dist
        self.are_many = not alone and dist.is_available() and dist.is_initialized()

    def first(self, do: Callable[[], Any]) -> Any:
        """Let the first of them do something, and give all what comes of it: the value, or the error."""
        if not self.are_many:
            return do()
        told: list[Any] = [None, None]
        if self._dist.get_rank() == 0:
            try:
                told[0] = do()
            except Exception as error:
                told[1] = f"rank 0: {type(error).__name__}: {error}"
        self._dist.broadcast_object_list(told, src=0)
        if told[1] is not None:
            raise CheckpointError(told[1])
        return told[0]


def _make_draft(place: Path, are_many: bool) -> Path:
    """An empty folder beside the place, which nobody takes for a checkpoint. Ranks together clear what others left."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if are_many:
        for left in place.parent.glob(".step-*"):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))


def _publish(draft: Path, place: Path, keep: int | None) -> None:
    """Put what was written in its place, and drop what is too old."""
    draft.chmod(0o777 & ~_umask())  # a temporary folder is its owner's alone
    if place.exists():
        _drop(place)
    draft.rename(place)
    _sync(place.parent)
    if keep is not None:
        for step in steps(place.parent)[:-keep]:
            if step != int(place.name.removeprefix("step-")):
                _drop(place.parent / f"step-{step}")


def _drop(place: Path) -> None:
    """Remove a checkpoint; one that is half removed is none any more."""
    gone = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    place.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Let the rename outlast a power failure, as the files do."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


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
    """Without what torch says where a process saves or loads alone: here that was asked for, or is documented."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def _unwrapped(state: dict[str, Any]) -> dict[str, Any]:
    """The same with the models that are in DistributedDataParallel ones."""
    return {name: value.module if _is_wrapper(value) else value for name, value in state.items()}


def _is_wrapper(value: Any) -> bool:
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(value, DistributedDataParallel)


def _fill(optimizer: Optimizer) -> None:
    """Give an optimizer the state that it has after a first step: what it does not have cannot be read into it."""
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
def _told(what: str) -> Iterator[None]:
    """Say what did not come about, and on which ranks, as an error of ours."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:  # no Exception
        failed = "\n".join(f"rank {rank}: {_say(raised)}" for rank, (raised, _) in sorted(error.failures.items()))
        raise CheckpointError(f"{what}\n{failed}") from error
    except Exception as error:
        raise CheckpointError(f"{what}\n{_say(error)}") from error


def _say(error: BaseException) -> str:
    return str(error) if isinstance(error, CheckpointError) else f"{type(error).__name__}: {error}"
