"""Batch normalization of a batch that is sharded over ranks: with the mean and variance of the whole batch.

torch's SyncBatchNorm does this on GPUs only, and replaces modules. This replaces the call of the operator while a
module's forward runs, so it also holds for modules that call `torch.nn.functional.batch_norm` themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_SIGNATURE = inspect.signature(functional.batch_norm)


class WholeBatchStatistics(TorchFunctionMode):
    """While the block runs, `torch.batch_norm` takes its statistics over all ranks of these groups.

    The ranks have `rows` entries of the batch together; this one has `own_rows`.
    """

    def __init__(self, groups: Sequence[Any], own_rows: int, rows: int) -> None:
        super().__init__()
        self._groups = groups
        self._own_rows = own_rows
        self._rows = rows

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.batch_norm:  # the operator below it is called with this mode switched off
            given = _SIGNATURE.bind(*args, **kwargs)
            given.apply_defaults()
            if given.arguments["training"]:
                return self._normalize(**given.arguments)
        elif func is torch.batch_norm and args[5]:
            x, weight, bias, running_mean, running_var, training, momentum, eps, _ = args
            return self._normalize(x, running_mean, running_var, weight, bias, training, momentum, eps)
        return func(*args, **kwargs)

    def _normalize(
        self,
        input: Tensor,  # noqa: A002
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> Tensor:
        x = input
        dims = [dim for dim in range(x.dim()) if dim != 1]
        shape = [-1 if dim == 1 else 1 for dim in range(x.dim())]
        count = x.numel() // x.shape[1] * self._rows // self._own_rows
        precise = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        mean = _SumOverRanks.apply(precise.sum(dims), self._groups) / count
        centered = precise - mean.view(shape)
        variance = _SumOverRanks.apply(centered.square().sum(dims), self._groups) / count
        result = centered * (variance + eps).rsqrt().view(shape)
        if weight is not None:
            result = result * weight.view(shape)
        if bias is not None:
            result = result + bias.view(shape)
        with torch.no_grad():
            if running_mean is not None:
                running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            if running_var is not None:
                running_var.lerp_((variance * (count / max(count - 1, 1))).to(running_var.dtype), momentum)
        return result.to(x.dtype)


class _SumOverRanks(torch.autograd.Function):
    """The sum of a tensor over the ranks of some groups; its gradient is the sum of the ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, groups: Sequence[Any]) -> Tensor:
        ctx.groups = groups
        return _sum(tensor, groups)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        return _sum(gradients[0], ctx.groups), None


def _sum(tensor: Tensor, groups: Sequence[Any]) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    for group in groups:
        dist.all_reduce(total, group=group)
    return total
