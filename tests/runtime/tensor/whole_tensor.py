"""A tensor that looks whole and stands for a sharded one: the controller and its ranks in one process, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_map_only

from meshbook.runtime.tensor.sharded.operators import ShardedOperators


class WholeTensor(Tensor):
    """A tensor that looks whole to autograd and stands for a DTensor, as the controller's tensors do."""

    @staticmethod
    def __new__(cls, sharded: DTensor, meta: Tensor, operators: ShardedOperators) -> WholeTensor:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            meta.shape,
            strides=meta.stride(),
            storage_offset=meta.storage_offset(),
            dtype=meta.dtype,
            device=sharded.device,
        )

    def __init__(self, sharded: DTensor, meta: Tensor, operators: ShardedOperators) -> None:
        self.sharded, self.meta, self.operators = sharded, meta, operators

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        wholes = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, WholeTensor)]
        operators = wholes[0].operators
        inner = tree_map_only(WholeTensor, lambda one: one.sharded, (args, kwargs))
        # An engine calls from outside of autograd, where versions are counted.
        excluded = torch._C._dispatch_tls_local_exclude_set().remove(torch._C.DispatchKey.ADInplaceOrView)
        with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
            results = operators.run(func, *inner)
        if torch.Tag.inplace_view in func.tags and isinstance(results, DTensor) and results is not wholes[0].sharded:
            wholes[0].sharded = results
            with no_dispatch():
                func(*args, **kwargs)
            func(wholes[0].meta, *args[1:], **kwargs)
            return wholes[0]
        metas = None
        if func.is_view:
            metas = tree_map_only(WholeTensor, lambda one: one.meta, (args, kwargs))
            metas = iter([without_conjugate_bit(one) for one in tree_flatten(func(*metas[0], **metas[1]))[0]])
        by_id = {id(one.sharded): one for one in wholes}

        def outer(result: DTensor) -> WholeTensor:
            if id(result) in by_id and metas is None:
                return by_id[id(result)]
            meta = next(metas) if metas is not None else meta_of(result)
            assert meta.shape == result.shape
            return WholeTensor(result, meta, operators)

        return tree_map_only(DTensor, outer, results)


def meta_of(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def without_conjugate_bit(meta: Tensor) -> Tensor:
    return torch._conj(meta) if meta.is_conj() else meta


def shard(full: Tensor, placements: Sequence[Placement], operators: ShardedOperators) -> WholeTensor:
    """Return a tensor with these placements on the mesh of `operators`, in parts that differ where it is a sum."""
    mesh = operators.mesh
    sharded = operators.distribute(full, [Replicate() if one.is_partial() else one for one in placements])
    share = 1.0
    for mesh_dim, one in enumerate(placements):
        size = mesh.size(mesh_dim)
        if isinstance(one, Partial) and size > 1:
            share *= 2.0 if mesh.get_local_rank(mesh_dim) == 0 else -1.0 / (size - 1)
    if any(one.is_partial() for one in placements):
        local = sharded.to_local() * share
        sharded = DTensor.from_local(
            local, mesh, placements, run_check=False, shape=full.shape, stride=sharded.stride()
        )
    return WholeTensor(sharded, meta_of(sharded), operators)


def full(tensor: Tensor) -> Tensor:
    """Return the value of a tensor as a plain tensor."""
    return tensor.operators.full(tensor.sharded) if isinstance(tensor, WholeTensor) else tensor.detach()
