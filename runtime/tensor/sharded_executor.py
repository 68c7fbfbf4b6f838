"""The executor of a rank in the global view: its values are DTensors, and `ShardedOperators` applies the operators."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.utils._pytree import tree_leaves, tree_map_only

from meshbook.runtime.tensor.executor import Executor, ValueRef
from meshbook.runtime.tensor.failures import Failed
from meshbook.runtime.tensor.groups import Groups, PeerFailed
from meshbook.runtime.tensor.layouts import Layout
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.sharded import placing, views
from meshbook.runtime.tensor.sharded.operators import ShardedOperators

aten = torch.ops.aten
# It advises to flatten meshes. But then torch 2.13 gathers tensors wrongly that two dimensions shard unevenly.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


class ShardedExecutor(Executor):
    """Runs the commands of one rank of a global mesh. All ranks run the same commands.

    `operators` exists from the command `join_mesh` on, which needs torch's default process group.
    """

    operators: ShardedOperators

    def __init__(self, rank: int, groups: Groups, layout: Layout) -> None:
        super().__init__(rank, groups, lambda func, args, kwargs: self.operators.run(func, args, kwargs))
        self._layout = layout
        self._handlers |= {
            "join_mesh": self._join_mesh,
            "random_state": self._set_random_state,
            "redistribute": self._redistribute,
            "align": self._align,
            "whole": self._keep_whole,
            "shard": self._keep_shard,
            "module": self._make_module,
            "method": self._call_method,
        }

    def _join_mesh(self, number: int, device: str) -> None:
        """Make the device mesh over the default process group; waits for the other ranks."""
        ranks = torch.arange(dist.get_world_size()).view(self._layout.shape)
        mesh = DeviceMesh(device, ranks, mesh_dim_names=self._layout.dims)
        self.operators = ShardedOperators(mesh)

    def _set_random_state(self, number: int, state: torch.Tensor | int) -> None:
        if isinstance(state, int):
            self.operators.random.manual_seed(state)
        else:
            self.operators.random.state = state

    # -- values -----------------------------------------------------------------------

    def _constant(self, number: int, output: int, tensor: torch.Tensor, meta: Meta) -> None:
        super()._constant(number, output, tensor, meta)
        if type(value := self.values[output]) is not Failed:
            self.values[output] = placing.wrap(value, self.operators.mesh)

    def _alias(self, number: int, output: int, source: int) -> None:
        value = self.values[source]
        self.values[output] = value if type(value) is Failed else self.operators.run(aten.detach.default, (value,))

    def _redistribute(self, number: int, output: int, source: int, placements: Sequence[Placement]) -> None:
        """Store a copy with other placements."""
        try:
            self.values[output] = self._place(self.values[source], placements)
        except Exception as error:
            self._fail(number, error, (source,), (output,))

    def _place(self, value: DTensor, placements: Sequence[Placement]) -> DTensor:
        held = [
            Replicate() if wanted.is_partial() and wanted != present else wanted
            for wanted, present in zip(placements, value.placements, strict=True)
        ]
        placed = self.operators.redistribute(value, held)
        local, mesh = placing.local_of(placed), placed.device_mesh
        for dim, (wanted, present) in enumerate(zip(placements, held, strict=True)):
            # A sum has the value on the first rank and zeros on the others.
            if wanted != present and mesh.get_local_rank(dim):
                local = torch.zeros_like(local)
        layout = {"shape": placed.shape, "stride": placed.stride()}
        return DTensor.from_local(local, mesh, tuple(placements), run_check=False, **layout)

    def _align(self, number: int, output: int, gradient: int, tensor: int) -> None:
        """Store a gradient with the placements of its tensor, which may be the gradient itself."""
        try:
            like = [Replicate() if isinstance(each, Partial) else each for each in self.values[tensor].placements]
            value = self.values[gradient]
            aligned = value if tuple(like) == value.placements else self.operators.redistribute(value, like)
            self.values[output] = aligned
        except Exception as error:
            self._fail(number, error, (gradient, tensor), (output,))

    def _keep_whole(self, number: int, output: int, source: int) -> None:
        """Store the whole value as a plain tensor, on the first rank."""
        try:
            whole = self.operators.full(self.values[source])
            self.values[output] = whole if self.rank == 0 else None
        except Exception as error:
            self._fail(number, error, (source,), (output,))

    def _keep_shard(self, number: int, output: int, source: int) -> None:
        """Store this rank's shard as a plain tensor."""
        try:
            views.refresh(self.values[source])
            self.values[output] = placing.local_of(self.values[source])
        except Exception as error:
            self._fail(number, error, (source,), (output,))

    # -- modules ----------------------------------------------------------------------

    def _make_module(self, number: int, output: int, source: Any, plan: Any, outputs: str) -> None:
        from meshbook.runtime.tensor.modules.hosted import HostedModule  # weight: 0.4 s for FSDP

        try:
            self.values[output] = HostedModule(source, plan, outputs, self.operators)
        except Exception as error:
            self._fail(number, error, (), (output,), is_between_ranks=isinstance(error, PeerFailed))

    def _call_method(
        self, number: int, target: int, name: str, tree: Any, outputs: Sequence[int] | int, kept: int
    ) -> None:
        """Call a method of a module. Its result gets ids as that of a function; `kept`, if not zero, what it keeps.

        A method that keeps something, or has a backward, gets `failed=True` if an argument has failed: the ranks go
        through its collectives together.
        """
        ids = [leaf.id for leaf in tree_leaves(tree) if isinstance(leaf, ValueRef)]
        made = [*([outputs] if isinstance(outputs, int) else outputs), *([kept] if kept else [])]
        try:
            method = getattr(self.values[target], name)
            args, kwargs = tree_map_only(ValueRef, lambda ref: self.values[ref.id], tree)
            if name in ("forward", "backward"):
                kwargs["failed"] = self.find_failed(ids) is not None
            result = method(*args, **kwargs)
            if kept:
                result, self.values[kept] = result
            if isinstance(outputs, int):
                self.values[outputs] = result
            else:
                leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
                self.values.update(zip(outputs, leaves, strict=True))
        except Exception as error:
            self._fail(number, error, (target, *ids), made, is_between_ranks=isinstance(error, PeerFailed))

    def apply_function(self, function: Any, tree: Any) -> Any:
        """Call a remote function with DTensors; a plain tensor in its result is equal on all ranks."""
        result = super().apply_function(function, tree)
        return tree_map_only(torch.Tensor, self._wrap, result)

    def _wrap(self, tensor: torch.Tensor) -> DTensor:
        return tensor if isinstance(tensor, DTensor) else placing.wrap(tensor, self.operators.mesh)
