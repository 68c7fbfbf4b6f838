"""The methods of a process mesh that begin with its tensors. The engine (`runtime.tensor`) is on a higher layer.

Its modules import torch, which programs without tensors never load.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshbook.runtime.tensor.device_mesh import DeviceMesh
    from meshbook.runtime.tensor.tensor import MeshTensor


class TensorMesh:
    """A process mesh on which torch can create tensors."""

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh of the tensors on these processes. The first use starts the tensor engine there.

        After a rank has died and was healed, this is another mesh with a new engine: the tensors were lost.
        """
        found: DeviceMesh | None = self.__dict__.get("_device_mesh")
        if found is None or found.engine.trouble is not None:
            from meshbook.runtime.tensor.device_mesh import device_mesh_of

            if found is not None:
                found.exit()
            made: Any = self
            found = self.__dict__["_device_mesh"] = device_mesh_of(made)
        return found

    def activate(self) -> contextlib.AbstractContextManager[DeviceMesh]:
        """While the block runs, torch creates tensors on this mesh, each rank its own, in this thread.

        with procs.activate():
            a = torch.rand(3, 4)
            total = a.reduce("gpus", "sum")
        fetch_shard(total, gpus=1).get()
        """
        return self.device_mesh.activate()

    def rank_tensor(self, dims: str | Sequence[str]) -> MeshTensor:
        """Return each rank's coordinate along a dimension, or its number along several, as a tensor."""
        return self.device_mesh.rank_tensor(dims)

    def rank_tensors(self) -> dict[str, MeshTensor]:
        """Return the coordinates of each rank by dimension, as tensors."""
        return self.device_mesh.rank_tensors()
