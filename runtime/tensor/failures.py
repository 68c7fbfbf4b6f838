"""What an operation that failed leaves behind: a value on the rank, and the errors that a fetch raises.

MeshbookError
  ├─ RemoteException   an operation failed on a rank; the line of the controller that issued it is named
  └─ DeviceMeshError   a rank of the mesh died, or the tensor was lost with it: heal_mesh(mesh), then make it again

`format_call` makes the text for arguments that cannot be used together.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meshbook.runtime.errors import MeshbookError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Failed:
    """Stands in the table of a rank for an output that could not be computed, and for all that depend on it."""

    command: int  # number of the command that failed first
    rank: int
    headline: str
    trace: str  # the traceback on the rank
    # It happened between ranks, so another rank may have failed or died first, and know more.
    is_of_peer: bool = False
    has_left: bool = False  # the rank has left its process groups, so that no other rank waits for it
    is_lost: bool = False  # the value was lost with a rank that died
    is_check: bool = False  # the command has no result that a fetch could raise it for: the next fetch does
    # What the tensor has in one process, where the error leaves it as it was. It stays on the rank.
    kept: torch.Tensor | None = field(default=None, compare=False, repr=False)

    def keeping(self, value: torch.Tensor | None) -> Failed:
        """Return the same failure for a tensor that has this value in one process; None: for one that has none."""
        return self if value is self.kept else dataclasses.replace(self, kept=value)

    def __reduce__(self) -> tuple[Any, ...]:
        return Failed, tuple(getattr(self, each.name) for each in dataclasses.fields(self) if each.name != "kept")


class RemoteException(MeshbookError):
    """An operation failed on a rank. `controller_frames` end with the line of the controller that issued it."""

    def __init__(
        self, worker_error_string: str, controller_frames: Sequence[traceback.FrameSummary] | None, rank: int
    ) -> None:
        super().__init__(worker_error_string, controller_frames, rank)
        self.worker_error_string = worker_error_string
        self.controller_frames = controller_frames
        self.rank = rank

    def __str__(self) -> str:
        frames = "".join(traceback.format_list(list(self.controller_frames or ())))
        issued = f"\nThe operation was issued here:\n{frames}" if frames else "\n"
        return f"an operation failed on rank {self.rank}{issued}The error on the rank:\n{self.worker_error_string}"


class DeviceMeshError(MeshbookError, RuntimeError):
    """A rank of the mesh died, or the tensor was lost with a rank. `heal_mesh(mesh)` makes the mesh usable again."""

    page = "devicemesherror"


HEADLINE = "Incorrect arguments to a mesh operation"


def format_call(name: str, args: Any, kwargs: Mapping[str, Any], faults: Sequence[tuple[torch.Tensor, str]]) -> str:
    """Return the text of the error: the call with its tensors numbered, and a line for each tensor with a fault."""
    import torch  # weight: programs that only catch these errors do not need it
    from torch.utils._pytree import tree_map

    tensors: list[torch.Tensor] = []

    def number(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        index = next((index for index, tensor in enumerate(tensors) if tensor is value), len(tensors))
        if index == len(tensors):
            tensors.append(value)
        return _Numbered(index)

    shown = [repr(tree_map(number, arg)) for arg in args]
    shown += [f"{key}={tree_map(number, value)!r}" for key, value in kwargs.items()]
    lines = [f"{HEADLINE}:", "", f"    {name}({', '.join(shown)})", ""]
    for index, tensor in enumerate(tensors):
        tags = [fault for faulty, fault in faults if faulty is tensor]
        kind = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        lines.append(f"    %{index} {kind}: {', '.join(tags) or 'ok'}")
    return "\n".join(lines)


class _Numbered:
    def __init__(self, index: int) -> None:
        self._index = index

    def __repr__(self) -> str:
        return f"%{self._index}"
