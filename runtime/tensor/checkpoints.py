"""Checkpoints of what is on a mesh of the global view: every rank writes its own parts, and reads those it needs.

The controller sends the names of the tensors, and all other values as they are. `meshbook.checkpoint` writes and reads
on the ranks, with torch.distributed.checkpoint: a checkpoint is complete or absent, and can be read on a mesh of
another shape. The folder must be on storage that all ranks share.
"""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate

from meshbook import checkpoint
from meshbook.checkpoint import CheckpointError
from meshbook.runtime.tensor.device_mesh import no_mesh
from meshbook.runtime.tensor.groups import PeerFailed
from meshbook.runtime.tensor.mesh_value import Place
from meshbook.runtime.tensor.modules.proxies import MeshModule
from meshbook.runtime.tensor.remote import RemoteFunction
from meshbook.runtime.tensor.sharded import placing, views
from meshbook.runtime.tensor.tensor import MeshTensor

TENSORS, OTHERS = "tensors", "others"  # the names of the tensors on the mesh, and of all else


class SavedTensor:
    """Stands for a tensor in the other values: its name in the checkpoint, and its metadata."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name = name
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype


def save_checkpoint(
    folder: str | os.PathLike[str], *, step: int | None = None, keep: int | None = None, **state: Any
) -> Path:
    """Write a checkpoint and return its path: `save_checkpoint("runs/a", model=model, optimizer=optimizer)`.

    `state` has, by name, modules on a mesh, optimizers and anything else with a `state_dict`, and mesh tensors. `step`
    is by default that after the newest checkpoint of the folder; a checkpoint of the same step is replaced. `keep`: how
    many of the newest ones stay. Waits for the ranks.

    Raises TypeError for state of which nothing is on a mesh of the global view, and RemoteException, with a
    CheckpointError of the rank, if a rank cannot write.
    """
    tensors: dict[str, MeshTensor] = {}
    others = {name: _name_tensors(name, _state_of(name, value), tensors) for name, value in state.items()}
    folder = str(Path(folder).absolute())  # the ranks have other working directories
    written: str = _run(_write, _place_of(tensors), tensors, pickle.dumps(others), folder, step, keep)
    _remember(Path(written), state)
    return Path(written)


def load_checkpoint(folder: str | os.PathLike[str], *, step: int | None = None, **state: Any) -> int:
    """Read the newest checkpoint of a folder, or that of a step, into `state`; return its step. Waits for the ranks.

    `state` is as in `save_checkpoint`, and may have fewer names. The mesh may have another shape and the module another
    plan than when the checkpoint was written. Modules that a dead rank has left without values get them.

    Raises TypeError for state of which nothing is on a mesh of the global view, and RemoteException, with a
    CheckpointError of the rank, if there is no such checkpoint, or it lacks a name or has another shape.
    """
    for value in state.values():
        if isinstance(value, MeshModule):
            value.refresh()
    place = _place_of(_tensors_of(state))
    folder = str(Path(folder).absolute())
    found, pickled = _run(_read_others, place, folder, step)
    others = pickle.loads(pickled)
    if missing := [name for name in state if name not in others]:
        raise CheckpointError(
            f"the checkpoint of step {found} in {folder} has no {', '.join(missing)}; it has: {', '.join(others)}"
        )
    tensors: dict[str, MeshTensor] = {}
    loaded = {name: _make_tensors(value, others[name], place, tensors) for name, value in state.items()}
    _run(_read, place, tensors, folder, found)
    for name, value in state.items():
        if isinstance(value, torch.optim.Optimizer) or not isinstance(value, (torch.nn.Module, torch.Tensor)):
            value.load_state_dict(loaded[name])
    _remember(Path(folder) / f"step-{found}", state)
    return int(found)


def _remember(path: Path, state: dict[str, Any]) -> None:
    """Let modules that are lost with a rank be loaded from this checkpoint, with all that was saved beside them."""
    references = {name: weakref.ref(value) for name, value in state.items()}

    def load() -> None:
        alive = {name: value for name, reference in references.items() if (value := reference()) is not None}
        load_checkpoint(path.parent, step=int(path.name.removeprefix("step-")), **alive)

    for value in state.values():
        if isinstance(value, MeshModule):
            value.remember(load)


def _state_of(name: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value.state_dict()
    raise TypeError(f"{name} is neither a tensor nor an object with a state_dict: {value!r}")


def _name_tensors(name: str, value: Any, tensors: dict[str, MeshTensor]) -> Any:
    """Return the value with `SavedTensor` in place of mesh tensors, which get names in `tensors`."""
    if isinstance(value, MeshTensor):
        tensors[name] = value.detach()
        return SavedTensor(name, value)
    if isinstance(value, Mapping):
        return {key: _name_tensors(f"{name}.{key}", each, tensors) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_name_tensors(f"{name}.{index}", each, tensors) for index, each in enumerate(value))
    return value


def _make_tensors(value: Any, saved: Any, place: Place, tensors: dict[str, MeshTensor]) -> Any:
    """Return the saved state with tensors to read into, which get their names in `tensors`.

    Those of modules are their own; those of optimizers are new, and placed like the parameter.
    """
    if isinstance(value, (torch.nn.Module, torch.Tensor)):
        _name_tensors_as(saved, _state_of("", value), tensors)
        return None
    parameters = _parameters_of(value)

    def make(named: SavedTensor, like: torch.Tensor | None) -> MeshTensor:
        if like is not None and tuple(like.shape) == named.shape:
            made: MeshTensor = torch.zeros_like(like.detach(), dtype=named.dtype)
        else:
            with no_mesh.activate():
                made = place.mesh.constant(torch.zeros(named.shape, dtype=named.dtype))
            made._constant = None  # the value that the controller knows will be another one
            made._meta = made._meta.as_constant(False)
        tensors[named.name] = made
        return made

    def walk(part: Any, key: Any, like: torch.Tensor | None) -> Any:
        like = parameters.get(key, like) if isinstance(key, int) else like
        if isinstance(part, SavedTensor):
            return make(part, like)
        if isinstance(part, dict):
            return {name: walk(each, name, like) for name, each in part.items()}
        if isinstance(part, (list, tuple)):
            return type(part)(walk(each, None, like) for each in part)
        return part

    return walk(saved, None, None)


def _name_tensors_as(saved: Any, value: Any, tensors: dict[str, MeshTensor]) -> None:
    if isinstance(saved, SavedTensor) and isinstance(value, MeshTensor):
        shape = tuple(value.shape)
        if saved.shape != shape:
            raise CheckpointError(f"{saved.name} has the shape {saved.shape} in the checkpoint, not {shape}")
        tensors[saved.name] = value.detach()
    elif isinstance(value, torch.Tensor):
        if isinstance(value, MeshTensor) or not isinstance(saved, torch.Tensor) or saved.shape != value.shape:
            raise CheckpointError(
                f"a tensor of shape {list(value.shape)} {'on a mesh' if isinstance(value, MeshTensor) else ''} cannot "
                f"be loaded from {saved if isinstance(saved, SavedTensor) else type(saved).__name__}"
            )
        with torch.no_grad():
            value.copy_(saved)
    elif isinstance(saved, Mapping):
        if missing := [key for key in value if key not in saved]:
            raise CheckpointError(f"the checkpoint lacks {', '.join(map(str, missing))}")
        for key, each in value.items():
            _name_tensors_as(saved[key], each, tensors)


def _parameters_of(value: Any) -> dict[int, torch.Tensor]:
    """Return the parameters of an optimizer by the number that they have in its state."""
    if not isinstance(value, torch.optim.Optimizer):
        return {}
    return dict(enumerate(each for group in value.param_groups for each in group["params"]))


def _tensors_of(state: dict[str, Any]) -> dict[str, MeshTensor]:
    def leaves() -> Iterator[tuple[str, MeshTensor]]:
        for name, value in state.items():
            found: dict[str, MeshTensor] = {}
            _name_tensors(name, _state_of(name, value), found)
            yield from found.items()
            yield from ((f"{name}/{n}", p) for n, p in _parameters_of(value).items() if isinstance(p, MeshTensor))

    return dict(leaves())


def _place_of(tensors: Mapping[str, MeshTensor]) -> Place:
    places = {each._place for each in tensors.values()}
    if len(places) != 1 or not next(iter(places)).is_global:
        raise TypeError(
            "a checkpoint has tensors of one mesh of the global view, such as those of module_to_mesh(), and here are "
            f"{[place.mesh for place in places] or 'none'}"
        )
    return places.pop()


# -- on the ranks ---------------------------------------------------------------------


def _run(function: Any, place: Place, *arguments: Any) -> Any:
    with torch.no_grad(), place.mesh.activate():
        return RemoteFunction(function, "inspect")(*arguments)


def _write(tensors: dict[str, DTensor], others: bytes, folder: str, step: int | None, keep: int | None) -> str:
    if step is None:
        newest = checkpoint.latest(folder)
        step = 0 if newest is None else newest + 1
    _check_ranks()
    whole = {name: _without_sums(each) for name, each in tensors.items()}
    return str(checkpoint.save({TENSORS: whole, OTHERS: others}, folder, step=step, keep=keep))


def _check_ranks() -> None:
    """Raise PeerFailed if the process groups are gone after a failure: each rank would write or read on its own."""
    if not dist.is_initialized():
        raise PeerFailed("an operation had failed before, and the ranks are not connected: try again")


def _without_sums(tensor: DTensor) -> DTensor:
    """Return the tensor without sums that are not reduced yet: they cannot be written."""
    views.refresh(tensor)
    return placing.redistribute(tensor, [Replicate() if each.is_partial() else each for each in tensor.placements])


def _read_others(folder: str, step: int | None) -> tuple[int, bytes]:
    state: dict[str, Any] = {OTHERS: b""}
    _check_ranks()
    found = checkpoint.load(state, folder, step=step)
    return found, state[OTHERS]


def _read(tensors: dict[str, DTensor], folder: str, step: int) -> None:
    _check_ranks()
    checkpoint.load({TENSORS: tensors}, folder, step=step)
