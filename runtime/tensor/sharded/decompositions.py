"""Operators as the operators that they consist of: torch's own decompositions, and those that it lacks.

Each one gives the same values when its parts are run on sharded tensors, because these parts do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table


def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalize with the mean and variance of the whole batch, which are sums over the shards.

    torch's decomposition takes the variance with an operator that would gather the batch.
    """
    if not training:
        normalize: Callable[..., Any] = decomposition_table[torch.ops.aten.native_batch_norm.default]
        result: tuple[Tensor, Tensor, Tensor] = normalize(
            x, weight, bias, running_mean, running_var, training, momentum, eps
        )
        return result
    channels = x.shape[1]
    count = x.numel() // channels
    dims = [0, *range(2, x.dim())]
    column = [1, channels, *[1] * (x.dim() - 2)]
    # Adding a number reduces the sum once, instead of at each use.
    mean = x.sum(dims) / count + 0.0
    centered = x - mean.view(column)
    var = (centered * centered).sum(dims) / count + 0.0
    rstd = (var + eps).rsqrt()
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
    if running_var is not None:
        running_var.mul_(1 - momentum).add_(var, alpha=momentum * count / max(count - 1, 1))
    out = centered * rstd.view(column)
    if weight is not None:
        out = out * weight.view(column)
    if bias is not None:
        out = out + bias.view(column)
    return out, mean, rstd


def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    """Check the values as the kernel does, which torch's decomposition leaves out."""
    torch._assert_async(((x >= 0) & (x <= 1)).all(), "all elements of input should be between 0 and 1")
    decompose = decomposition_table[torch.ops.aten.binary_cross_entropy.default]
    result: Tensor = decompose(x, target, weight, reduction)
    return result


_OWN: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_batch_norm.default: native_batch_norm,
    torch.ops.aten.binary_cross_entropy.default: binary_cross_entropy,
}

# Kernels that divide by the number of local entries, or compare with local ones.
_FROM_TORCH = """
    mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss huber_loss_backward
    soft_margin_loss soft_margin_loss_backward binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits native_batch_norm_backward
    """
_NAMES_FROM_TORCH = frozenset(_FROM_TORCH.split())


def decomposition_of(func: Any) -> Callable[..., Any] | None:
    """Return the function that computes the operator `func` with other operators, or None if there is none to use."""
    if func in _OWN:
        return _OWN[func]
    if func._schema.name.partition("::")[2] in _NAMES_FROM_TORCH and func in decomposition_table:
        from_torch: Callable[..., Any] = decomposition_table[func]
        return from_torch
    if func.has_kernel_for_dispatch_key(torch.DispatchKey.CompositeImplicitAutograd):
        decompose: Callable[..., Any] = func.decompose
        return decompose
    return None
