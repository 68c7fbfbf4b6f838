"""Random programs of views, in-place operations, reductions and reshards, on sharded tensors beside plain ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from meshbook.runtime.tensor.sharded.operators import ShardedOperators
from tests.runtime.tensor.whole_tensor import WholeTensor, full, meta_of, shard


@dataclass(frozen=True)
class Step:
    """An operation by name, and numbers that choose its tensors and arguments."""

    operation: str
    first: int
    second: int
    number: int


def run_program(mesh: DeviceMesh, shape: tuple[int, ...], layout: tuple[int, ...], steps: list[Step]) -> str | None:
    """Run a program twice; return the first difference in words, or None."""
    operators = ShardedOperators(mesh)
    start = torch.arange(1.0, torch.Size(shape).numel() + 1).reshape(shape) / 8
    plain = [start, start.flip(0) if start.dim() else start + 1]
    whole: list[Tensor] = [shard(one, placements(layout, one, mesh), operators) for one in plain]
    plain = [one.clone() for one in plain]
    for at, step in enumerate(steps):
        index = step.first % len(plain)
        other = next(
            (
                i
                for i in range(step.second, step.second + len(plain))
                if plain[i % len(plain)].shape == plain[index].shape
            ),
            index,
        ) % len(plain)
        expected = apply_or_fail(step, plain[index], plain[other])
        if expected is None:
            continue
        if step.operation == "reshard":
            got: Any = reshard(whole[index], placements((step.number, step.second), plain[index], mesh))
        else:
            got = apply_or_fail(step, whole[index], whole[other])
        if isinstance(expected, Exception):
            if not isinstance(got, Exception):
                return f"step {at} {step} does not raise {expected!r}"
        elif expected is not plain[index]:
            plain.append(expected)
            whole.append(got)
        for number, (a, b) in enumerate(zip(whole, plain, strict=True)):
            if a.shape != b.shape or not torch.allclose(full(a), b, rtol=1e-4, atol=1e-5, equal_nan=True):
                return f"tensor {number} differs after step {at} {step}: {full(a)} instead of {b}"
    return None


def placements(layout: tuple[int, ...], tensor: Tensor, mesh: DeviceMesh) -> list[Placement]:
    choices: list[Placement] = [Replicate(), Partial(), *(Shard(dim) for dim in range(tensor.dim()))]
    return [choices[layout[dim % len(layout)] % len(choices)] for dim in range(mesh.ndim)]


def reshard(tensor: Tensor, wanted: list[Placement]) -> Tensor:
    assert isinstance(tensor, WholeTensor)
    moved = tensor.operators.redistribute(
        tensor.sharded, [Replicate() if placement.is_partial() else placement for placement in wanted]
    )
    return WholeTensor(moved, meta_of(moved), tensor.operators)


VIEWS = ["select", "narrow", "strided", "transpose", "flatten", "unsqueeze", "squeeze", "expand", "chunk", "unbind"]
VIEWS += ["diagonal", "detach", "split_first", "unfold"]
# They raise an error that depends on values: one of them after a part was written.
FAILING = ["fill_out_of_range", "put_out_of_range", "add_out_of_range", "invert", "assert"]
IN_PLACE = ["add_", "mul_", "fill_", "add_other_", "copy_", "zero_", "set_rows", "clamp_", "masked_fill_", "cumsum_"]
NEW = [
    "add",
    "mul",
    "exp",
    "sum",
    "mean",
    "amax",
    "softmax",
    "cumsum",
    "cat",
    "sort",
    "clone",
    "var",
    "matmul",
    "sum_all",
]
NEW += ["reshape", "where", "index_select", "norm", "argmax", "flip", "pairs", "repeat"]
OPERATIONS = [*VIEWS, *IN_PLACE, *NEW, *FAILING, "reshard"]
# These take tensors without entries.
OF_EMPTY = ["transpose", "flatten", "unsqueeze", "squeeze", "expand", "chunk", "detach", "strided", "fill_", "zero_"]
OF_EMPTY += [
    "add_",
    "mul_",
    "add_other_",
    "copy_",
    "clamp_",
    "masked_fill_",
    "cumsum_",
    "add",
    "mul",
    "exp",
    "sum",
    "cat",
]
OF_EMPTY += ["sum_all", "softmax", "cumsum", "sort", "clone", "reshape", "where", "norm", "flip", "pairs", "repeat"]


def apply_or_fail(step: Step, x: Tensor, y: Tensor) -> Tensor | Exception | None:
    """Apply a step; return the error that a step raises which is to fail, or which writes to an expanded tensor."""
    if step.operation not in (*FAILING, *IN_PLACE):
        return apply(step, x, y)
    try:
        return apply(step, x, y)
    except (RuntimeError, IndexError) as error:
        return error


def apply(step: Step, x: Tensor, y: Tensor) -> Tensor | None:
    """Apply a step to plain or whole tensors; None if it does not fit their shapes."""
    name, n = step.operation, step.number
    if name in ("reshard", "clone"):
        return x.clone()
    if x.dim() == 0 and name in (*VIEWS, "set_rows", "cumsum", "cat", "sort", "softmax", "flip", "index_select"):
        return x.unsqueeze(0) if name == "unsqueeze" else None
    dim = n % max(x.dim(), 1)
    size = x.shape[dim] if x.dim() else 1
    if x.numel() > 4096 or (not x.numel() and name not in OF_EMPTY):
        return None
    view = _apply_view(name, x, n, dim, size)
    if view is not None:
        return view
    if name in (*IN_PLACE, *FAILING):
        return None if _overlaps(x) else _apply_in_place(name, x, y, n, dim, size)
    return _apply_new(name, x, y, n, dim, size)


def _overlaps(x: Tensor) -> bool:
    """Tell whether entries share memory in part, as those of an unfolded tensor: what a write leaves is undefined."""
    reach = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and 0 < stride < reach:
            return True
        reach += stride * (size - 1) if size > 1 else 0
    return False


def _apply_view(name: str, x: Tensor, n: int, dim: int, size: int) -> Tensor | None:
    match name:
        case "select":
            return x.select(dim, n % size)
        case "narrow":
            return x.narrow(dim, n % size, max(1, (size - n % size) // 2))
        case "strided":
            return x[::2]
        case "transpose":
            return x.transpose(dim, 0)
        case "flatten":
            return x.view(-1) if x.is_contiguous() else None
        case "unsqueeze":
            return x.unsqueeze(dim)
        case "squeeze":
            return x.squeeze()
        case "expand":
            return x.unsqueeze(0).expand(3, *x.shape)
        case "chunk":
            return x.chunk(2, dim)[-1]
        case "unbind":
            return x.unbind(dim)[n % size]
        case "diagonal":
            return x.diagonal() if x.dim() > 1 else None
        case "detach":
            return x.detach()
        case "split_first":
            return x.split([1, size - 1], dim)[0] if size > 1 else None
        case "unfold":
            return x.unfold(dim, 2, 1) if size > 1 else None
    return None


def _apply_in_place(name: str, x: Tensor, y: Tensor, n: int, dim: int, size: int) -> Tensor | None:
    if name in FAILING:
        return _fail(name, x, n, dim, size)
    match name:
        case "add_":
            return x.add_(n / 4)
        case "mul_":
            return x.mul_(0.5)
        case "fill_":
            return x.fill_(n)
        case "zero_":
            return x.zero_()
        case "add_other_":
            return x.add_(y.clone(), alpha=0.25)
        case "copy_":
            return x.copy_(y.clone())
        case "set_rows":
            x[n % x.shape[0]] = float(n)
            return x
        case "clamp_":
            return x.clamp_(-n, n)
        case "masked_fill_":
            return x.masked_fill_(x > n / 8, 0.5)
        case "cumsum_":
            return x.cumsum_(dim).mul_(0.25)
    return None


def _fail(name: str, x: Tensor, n: int, dim: int, size: int) -> Tensor | None:
    match name:
        case "fill_out_of_range":
            return x.index_fill_(dim, torch.tensor([size + n]), 1.0) if x.dim() else None
        case "put_out_of_range":
            return x.index_put_((torch.tensor([0, 99]),), x.sum()) if x.dim() else None
        case "add_out_of_range":
            return x.index_add_(dim, torch.tensor([size + n]), x.narrow(dim, 0, 1).clone()) if x.dim() else None
        case "invert":
            square = x.dim() == 2 and x.shape[0] == x.shape[1]
            return x.copy_(torch.linalg.inv(x * 0)) if square else None
        case "assert":
            torch._assert_async(x.sum() != x.sum())
    return x


def _apply_new(name: str, x: Tensor, y: Tensor, n: int, dim: int, size: int) -> Tensor | None:
    match name:
        case "add":
            return x + y if n % 2 else x + n
        case "mul":
            return x * 0.5 if n % 2 else x * y * 0.01
        case "exp":
            return x.clamp(max=1).exp()
        case "sum":
            return x.sum(dim) if x.dim() else x.sum()
        case "sum_all":
            return x.sum()
        case "mean":
            return x.mean(dim, keepdim=bool(n % 3)) if x.dim() else x.mean()
        case "amax":
            return x.amax(dim) if x.dim() else x.amax()
        case "var":
            return x.var(dim, correction=0) if x.dim() else None
        case "softmax":
            return x.softmax(dim)
        case "cumsum":
            return x.cumsum(dim) * 0.25
        case "cat":
            return torch.cat([x, y], dim)
        case "sort":
            return x.sort(dim).values
        case "matmul":
            return x @ y.transpose(0, 1) * 0.01 if x.dim() == 2 else None
        case "reshape":
            return x.reshape(-1) + 0
        case "where":
            return torch.where(x > y, x, 0.5)
        case "index_select":
            return x.index_select(dim, torch.tensor([n % size, 0, size - 1]))
        case "norm":
            return torch.linalg.vector_norm(x)
        case "argmax":
            return x.argmax().float()
        case "flip":
            return x.flip(dim)
        case "pairs":  # the entries that are chosen may be none
            return x[x > n].reshape(-1, 1, 1).expand(-1, 2, 1).reshape(-1, 2)
        case "repeat":
            return x.repeat_interleave(2, dim) if x.dim() else None
    return None
