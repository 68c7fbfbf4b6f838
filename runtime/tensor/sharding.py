"""What a tensor of the global view can do: its placements, and their changes.

A tensor of the global view is one tensor, spread over the ranks. Moving it leaves its value alone, so the gradient of a
move is the gradient itself.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any

import torch

from meshbook.runtime.tensor.lanes import Ref
from meshbook.runtime.tensor.layouts import placements_of
from meshbook.runtime.tensor.metadata import Meta
from meshbook.runtime.tensor.templates import user_place

if TYPE_CHECKING:
    from meshbook.runtime.tensor.mesh_value import MeshValue

DEPTH = 2


class Sharding:
    """Methods of `MeshTensor` for the global view. In the per-rank view they raise TypeError."""

    __slots__ = ()

    @property
    def placements(self: Any) -> tuple[Any, ...]:
        """The placement for each dimension of the mesh: torch's Shard, Replicate or Partial; waits."""
        _check_view("placements", self)
        engine = self._place.engine
        engine.check_can_wait()
        asked = engine.ask(0, "placements", self._ref.id)
        asked.wait_here()
        found: tuple[Any, ...] = engine.check_all([asked.get()])[0]
        return found

    def redistribute(self: Any, sharding_spec: Any = None, *, placements: Any = None) -> Any:
        """Return this tensor with other placements: `x.redistribute(["model", None])`. None: replicated.

        `sharding_spec` and `placements` are those of `distribute`, with the same errors.
        """
        _check_view("redistribute", self)
        given = sharding_spec if placements is None else placements
        return _Redistribute.apply(self, placements_of(given, self.dim(), self.mesh.dims))

    def full_tensor(self: Any) -> torch.Tensor:
        """Return the whole value as a local tensor; waits."""
        _check_view("full_tensor", self)
        whole: torch.Tensor = _Gather.apply(self)
        return whole

    def _issue_for(self: Any, command: str, *arguments: Any) -> Ref:
        """Issue a command that stores another value for this one; return the value's reference."""
        lane = self._place.lane
        if lane.engine.recorder is not None:
            lane.engine.recorder.hold([self])
        ref: Ref = lane.new_ref(lane.engine.new_ids(1))
        lane.engine.issue(lane, (command, ref.id, self._ref.id, *arguments), user_place(DEPTH), 0)
        return ref

    def _align_gradient(self: Any) -> None:
        """Let gradients that arrive here get the placements of this tensor.

        A gradient is often a sum that is not reduced yet, and each operator of an optimizer would reduce it again.
        """
        if self._place.is_global and self.requires_grad and self.is_leaf and not self._backward_hooks:
            self.register_hook(functools.partial(_align, weakref.ref(self)))


def _align(owner: weakref.ref[Any], gradient: Any) -> Any:
    tensor: Any = owner()
    place: Any = None if tensor is None else tensor._place
    if place is None or getattr(gradient, "_place", gradient) is not place:
        return gradient
    if place.engine.recorder is not None:
        place.engine.recorder.hold([tensor])
    return gradient._like(gradient._meta, gradient._issue_for("align", tensor._ref.id))


class _Redistribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: MeshValue, placements: tuple[Any, ...]) -> Any:
        copied = Meta.of(tensor._meta.make_tensor().clone(), tensor._meta.device)
        return tensor._like(copied, tensor._issue_for("redistribute", placements))

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: MeshValue) -> torch.Tensor:
        ctx.mesh = tensor.mesh
        return tensor.fetch_first()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.mesh.constant(gradient)


def _check_view(name: str, tensor: Any) -> None:
    if not tensor._place.is_global:
        raise TypeError(
            f"{name} is for tensors of the global view, which distribute(x, mesh) makes; of this tensor, each rank has "
            "its own value"
        )
    if tensor._place.state:
        raise TypeError(f"{tensor!r} cannot be used: it is {tensor._place.state}")
