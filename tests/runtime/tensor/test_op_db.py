"""Each of PyTorch's own operators on a mesh gives what it gives locally: values, metadata and gradients.

`op_db` is PyTorch's list of its operators, with sample arguments. A mesh of one rank runs each with samples of float32
and int64. The entries that are no exact comparison are listed here by name, with the reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from meshbook.runtime.tensor.failures import RemoteException
from meshbook.runtime.tensor.tensor import MeshTensor
from meshbook.runtime.tensor.trees import fetch_shard
from tests.runtime.tensor.operator_check import import_operators
from tests.support import PATIENCE

pytestmark = pytest.mark.slow

op_db = import_operators()
SAMPLES = {torch.float32: 2, torch.int64: 1}
LEAST = 0.9  # the part of the operators that must hold

RANDOM = {  # each rank draws its own numbers: shape and type alone are compared
    *("bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial", "normal", "normal.in_place"),
    *("normal.number_mean", "rand_like", "randint", "randint_like", "randn", "randn_like", "uniform"),
    *("nn.functional.alpha_dropout", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d"),
    *("nn.functional.feature_alpha_dropout.with_train", "nn.functional.fractional_max_pool2d"),
    *("nn.functional.fractional_max_pool3d", "nn.functional.multi_head_attention_forward", "nn.functional.rrelu"),
    *("nn.functional.scaled_dot_product_attention", "svd_lowrank", "pca_lowrank"),
}
UNINITIALIZED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
NEARLY = {"linalg.cond"}  # the quotient of values that round differently: 1e-5 instead of 1e-6
REFUSED = {  # with the error that a user sees
    **dict.fromkeys(("sparse.mm.reduce", "sparse.sampled_addmm", "to_sparse"), "tensors of a mesh must be dense"),
    # torch reads the values of its second tensor, which are on the ranks; a list of numbers works
    "tensor_split": "its data is not allocated",
}
# The CPU kernels leave two results empty in evaluation, where the meta kernels of torch say that they have a size.
OTHER_SHAPE = {"native_batch_norm", "_native_batch_norm_legit"}
WITHOUT_SAMPLES = {  # on the CPU, in these types
    *("imag", "istft", "view_as_real", "nn.functional.batch_norm.without_cudnn", "nn.functional.silu.complex"),
    *("jiterator_2inputs_2outputs", "jiterator_4inputs_with_extra_args", "jiterator_binary"),
    *("jiterator_binary_return_by_ref", "jiterator_unary", "torch._scaled_mm", "torch._scaled_mm_v2"),
    *("torch.ops.aten._efficient_attention_forward", "torch.ops.aten._flash_attention_forward"),
}


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def samples(op: Any) -> Iterator[tuple[Any, Any]]:
    """Yield arguments that the operator takes locally."""
    for dtype, count in SAMPLES.items():
        if op.supports_dtype(dtype, "cpu"):
            for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), count):
                yield (sample.input, *sample.args), sample.kwargs


def compare(op: Any, result: Any, expected: Any) -> None:
    """Raise AssertionError unless a result on the mesh equals the local one."""
    name = name_of(op)
    ours, local = tree_leaves(result), tree_leaves(expected)
    values = [leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf for leaf in tree_leaves(fetched(result))]
    assert len(ours) == len(local)
    for leaf, value, other in zip(ours, values, local, strict=True):
        if name in OTHER_SHAPE:
            continue
        if not isinstance(other, torch.Tensor):
            assert value == other or value != value
            continue
        assert isinstance(leaf, MeshTensor)
        assert (leaf.shape, leaf.dtype, leaf.is_conj()) == (other.shape, other.dtype, other.is_conj())
        assert (value.shape, value.dtype) == (leaf.shape, leaf.dtype)
        if name not in RANDOM | UNINITIALIZED:
            is_exact = not (other.is_floating_point() or other.is_complex())
            tolerance = 0.0 if is_exact else 1e-5 if name in NEARLY else 1e-6
            torch.testing.assert_close(value, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def fetched(tree: Any) -> Any:
    return fetch_shard(tree).get(PATIENCE)


def gradient(op: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """Return the gradient of the sum of all results by the first argument."""
    first = args[0].detach().requires_grad_()
    results = tree_leaves(op(first, *args[1:], **kwargs))
    parts = [each for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
    if not parts:
        return None
    sum((part.abs() if part.is_complex() else part).sum() for part in parts).backward()
    return first.grad


def copied(tree: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda each: each.clone() if each.layout is torch.strided else each, tree)


def run_on_mesh(op: Any, mesh: Any, sample: Any) -> Any:
    args, kwargs = tree_map_only(torch.Tensor, mesh.constant, sample)
    return op(*args, **kwargs)


@pytest.fixture(scope="module")
def mesh(make_procs):
    return make_procs(gpus=1).device_mesh


@pytest.mark.parametrize("op", op_db, ids=name_of)
def test_an_operator(op, mesh):
    name = name_of(op)
    found = list(samples(op))
    if name in WITHOUT_SAMPLES:
        pytest.skip("no sample runs on the CPU in these types")
    assert found
    if name in REFUSED:
        with mesh.activate(), pytest.raises((RuntimeError, RemoteException), match=REFUSED[name]):
            run_on_mesh(op, mesh, found[0])
        return
    for index, sample in enumerate(found):
        args, kwargs = copied(sample)
        expected = op(*args, **kwargs)
        with mesh.activate():
            result = run_on_mesh(op, mesh, sample)
        compare(op, result, expected)
        if index == 0:
            compare_gradients(op, mesh, sample)


def compare_gradients(op: Any, mesh: Any, sample: Any) -> None:
    first = sample[0][0]
    if not (op.supports_autograd and isinstance(first, torch.Tensor) and first.is_floating_point()):
        return
    expected = gradient(op, *copied(sample))
    with mesh.activate():
        result = gradient(op, *tree_map_only(torch.Tensor, mesh.constant, sample))
    assert (result is None) == (expected is None)
    if expected is not None:
        compare(op, result, expected)


def test_most_operators_are_compared():
    names = {name_of(op) for op in op_db}
    others = [RANDOM, UNINITIALIZED, REFUSED, OTHER_SHAPE, WITHOUT_SAMPLES]
    assert names >= set().union(*others)
    assert len(names - set().union(*others)) >= LEAST * len(names)
