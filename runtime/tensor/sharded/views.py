"""Views that do not share memory with their base, because the base is sharded differently.

A row of a tensor that is sharded by rows, for example, is on one rank; DTensor returns a copy of it on all. PyTorch
promises that writing to the row changes the tensor, and the reverse. A detached view therefore remembers its base and
how it is made from it. It is made anew before it is read after the base has changed, and a write to it goes on to the
base.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from meshbook.runtime.tensor.sharded.placing import assign, gather, local_of, scatter, with_order_of

ATTRIBUTE = "_meshbook_detached_view"


@dataclass
class DetachedView:
    """How a view is made from its base, and the version of the base of which it has the values."""

    base: DTensor
    make: Callable[[Tensor], Tensor]  # from the whole base to the whole view, sharing memory
    version: int


def detached(tensor: DTensor) -> DetachedView | None:
    view: DetachedView | None = getattr(tensor, ATTRIBUTE, None)
    return view


def detach_view(out: DTensor, source: DTensor, make: Callable[[Tensor], Tensor]) -> DTensor:
    """Record that `out` is the view that `make` makes from `source`, though it does not share its memory."""
    outer = detached(source)
    if outer is None:
        view = DetachedView(source, make, source._version)
    else:
        make_outer = outer.make
        view = DetachedView(outer.base, lambda base: make(make_outer(base)), outer.base._version)
    setattr(out, ATTRIBUTE, view)
    return out


def refresh(tensor: DTensor) -> None:
    """Give a detached view the values that its base has now."""
    view = detached(tensor)
    if view is None or view.version == view.base._version:
        return
    assign(local_of(tensor), scatter(view.make(gather(view.base)), tensor))
    view.version = view.base._version


def write_through(tensor: DTensor) -> None:
    """Write the values of a detached view to its base."""
    view = detached(tensor)
    if view is None:
        return
    base = gather(view.base)
    assign(view.make(base), gather(tensor))
    store(base, view.base)
    view.version = view.base._version


def store(full: Tensor, tensor: DTensor) -> None:
    """Write the whole value `full` to the tensor, in place."""
    local = local_of(tensor)
    if full is not local:
        assign(local, scatter(with_order_of(full, tensor.stride()), tensor))
    torch.autograd.graph.increment_version(tensor)
