"""What an operation that failed leaves behind: a value on the rank, and the errors that a fetch raises.

MeshbookError
  ├─ RemoteException   an operation failed on a rank; the line of the controller that issued it is named
  └─ DeviceMeshError   a rank of the mesh died, or the tensor was lost with it: heal_mesh(mesh), then make it again
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from meshbook.runtime.errors import MeshbookError


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
