"""The random numbers of the ranks. Each rank draws from its own generators; these functions run on the active mesh."""

from __future__ import annotations

from typing import Any

import torch

from meshbook.runtime.tensor.device_mesh import get_active_mesh
from meshbook.runtime.tensor.remote import remote
from meshbook.runtime.tensor.tensor import MeshTensor


def _set_seed(seed: int, rank: torch.Tensor | int | None = None) -> None:
    torch.manual_seed(seed if rank is None else seed + int(rank))


def _get_state() -> torch.Tensor:
    return torch.get_rng_state()


def _new_state(seed: torch.Tensor | int) -> torch.Tensor:
    return torch.Generator().manual_seed(int(seed)).get_state()


def _set_state(state: torch.Tensor) -> None:
    torch.set_rng_state(state)


def _set_deterministic() -> None:
    torch.use_deterministic_algorithms(True)


def _state_like(*_: Any) -> torch.Tensor:
    return torch.empty(_STATE_BYTES, dtype=torch.uint8)


def _nothing(*_: Any) -> None:
    return None


_STATE_BYTES = torch.get_rng_state().numel()
set_manual_seed_remote = remote(_set_seed, propagate=_nothing)
get_rng_state_remote = remote(_get_state, propagate=_state_like)
_new = remote(_new_state, propagate=_state_like)
set_rng_state_remote = remote(_set_state, propagate=_nothing)
_deterministic = remote(_set_deterministic, propagate=_nothing)


def manual_seed(seed: int, *, same: bool = False) -> None:
    """Seed the ranks of the active mesh: rank i with `seed + i`, or all with `seed` if `same`.

    In the global view all ranks draw the same numbers, and this is `torch.manual_seed`. Raises ValueError if no mesh is
    active, as all functions here do.
    """
    mesh = get_active_mesh()
    if mesh.engine.layout is not None:
        torch.manual_seed(seed)  # the mesh takes the random state of this process
        return
    set_manual_seed_remote(seed, None if same else mesh.rank_tensor(mesh.extent.labels))


def get_state() -> MeshTensor:
    """Return the state of each rank's CPU generator, a tensor of bytes on the mesh."""
    _check_view()
    state: MeshTensor = get_rng_state_remote()
    return state


def set_state(state: MeshTensor) -> None:
    """Set the state of each rank's CPU generator."""
    _check_view()
    set_rng_state_remote(state)


def new_state(seed: MeshTensor | int) -> MeshTensor:
    """Return the state that a CPU generator has after seeding; the seed may be a number of each rank."""
    state: MeshTensor = _new(seed)
    return state


def _check_view() -> None:
    if get_active_mesh().engine.layout is not None:
        raise TypeError("random states are of the per-rank view; seed a global mesh with torch.manual_seed()")


def make_deterministic() -> None:
    """Make the ranks use deterministic algorithms, and raise errors where torch has none."""
    _deterministic()
