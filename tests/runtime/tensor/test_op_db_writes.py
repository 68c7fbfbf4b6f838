"""PyTorch's operators that write to an input, or fail by their data, leave and raise what they do in one process.

Each operator of `op_db` that has an in-place form or takes `out=` writes to a tensor, to a row of one and to a column,
in both views. With indices out of range, and with singular matrices, many of them fail on the ranks only: a fetch of
the base and of the view raises then, and both have the values that one process keeps. `test_op_db` compares results.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.utils._pytree import tree_leaves, tree_map_only

from meshbook.runtime.hosts.session import close_session, current_session
from meshbook.runtime.tensor.distributing import distribute
from meshbook.runtime.tensor.failures import RemoteException
from meshbook.runtime.tensor.trees import fetch_shard
from tests.runtime.tensor.operator_check import import_operators
from tests.runtime.tensor.test_op_db import RANDOM, UNINITIALIZED, name_of
from tests.support import PATIENCE

pytestmark = pytest.mark.process

PARTS = 8
SAMPLES = {torch.float32: 2, torch.int64: 1}
TOLERANCE = 1e-5
LEAST = 400  # writes that are compared in a part, of which so many fail
LEAST_FAILING = 20
CHOSEN = {"add", "index_fill", "index_put", "kron", "scatter_add", "squeeze", "hash_tensor", "tril"}  # in each run

# A tensor that is written to, of its base, and the base of a tensor.
TARGETS: dict[str, tuple[Callable[[Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "itself": (lambda base: base, lambda x: x.clone()),
    "row": (lambda base: base[1], lambda x: torch.stack([x, x, x])),
    "column": (lambda base: base[..., 1], lambda x: torch.stack([x, x], -1)),
}


REFUSALS = ("would resize a tensor of a mesh", "cannot run on the sharded tensors")


class Write(NamedTuple):
    """A call that writes to the tensor that it is given first."""

    name: str
    call: Callable[..., Any]
    target: torch.Tensor
    args: Any
    kwargs: Any


def writes_of(op: Any) -> Iterator[Write]:
    """Yield calls of an operator that write, with samples that fit and with indices that are out of range."""
    for dtype, count in SAMPLES.items():
        if not op.supports_dtype(dtype, "cpu"):
            continue
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=False), count):
            if not isinstance(sample.input, torch.Tensor) or sample.input.layout is not torch.strided:
                continue
            for args in (sample.args, out_of_range(sample.args)):
                if args is None:
                    continue
                if op.inplace_variant is not None and not sample.broadcasts_input:
                    yield Write(f"{name_of(op)} in place", op.inplace_variant, sample.input, args, sample.kwargs)
                if op.supports_out and (result := result_of(op, sample)) is not None:
                    yield Write(f"{name_of(op)} out", write_out(op), result, (sample.input, *args), sample.kwargs)


def out_of_range(args: Any) -> Any:
    """Return arguments with larger indices; None if there are none."""
    is_index = any(leaf.dtype is torch.int64 for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor))
    return tree_map_only(torch.Tensor, lambda x: x + 1000 if x.dtype is torch.int64 else x, args) if is_index else None


def result_of(op: Any, sample: Any) -> torch.Tensor | None:
    with contextlib.suppress(Exception):
        result = op(sample.input, *sample.args, **sample.kwargs)
        if isinstance(result, torch.Tensor) and result.layout is torch.strided:
            return torch.zeros_like(result)
    return None


def write_out(op: Any) -> Callable[..., Any]:
    return lambda target, *args, **kwargs: op(*args, **kwargs, out=target)


class View:
    """A view of tensors on the ranks."""

    def __init__(self, place: Callable[[torch.Tensor], Any], activate: Callable[[], Any]) -> None:
        self.place = place
        self.activate = activate

    def error_of(self, call: Callable[[], Any], *tensors: Any) -> Exception | None:
        """Return what a call raises, at once or where the tensors are fetched."""
        try:
            with self.activate():
                results = call()
            fetch_shard([*tensors, *tree_leaves(results)]).get(PATIENCE)
        except RemoteException as error:
            return error if error.controller_frames else None
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            return error
        return None


def value(tensor: Any) -> torch.Tensor:
    whole: torch.Tensor = tensor.full_tensor() if tensor._place.is_global else fetch_shard(tensor).get(PATIENCE)
    return whole.resolve_conj()


def differences(view: View, write: Write, where: str) -> Iterator[str | None]:
    """Yield in words what differs from one process; None if nothing does, and "fails" if both raise an error."""
    of_base, make_base = TARGETS[where]
    plain = make_base(write.target)
    plain_target = of_base(plain)
    base = view.place(plain)
    args, kwargs = tree_map_only(torch.Tensor, view.place, (write.args, write.kwargs))
    target = of_base(base)
    expected = None
    try:
        write.call(plain_target, *write.args, **write.kwargs)
    except Exception as error:
        expected = error
    error = view.error_of(lambda: write.call(target, *args, **kwargs), base, target)
    title = f"{write.name}, {where}, {tuple(write.target.shape)}"
    if error is not None and any(text in str(error) for text in REFUSALS):
        plain = make_base(write.target)
        plain_target = of_base(plain)
    elif (error is None) != (expected is None):
        yield f"{title}: {str(error)[-200:]!r} instead of {expected!r:.200}"
        return
    for tensor, other in ((base, plain), (target, plain_target)):
        try:
            torch.testing.assert_close(value(tensor), other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        except (AssertionError, RemoteException) as error:
            yield f"{title}: after {expected!r:.80}: {str(error)[:200]!r}"
            return
    yield None if expected is None else "fails"


@pytest.fixture(scope="module")
def views() -> Iterator[dict[str, View]]:
    procs = current_session().host.spawn_procs(per_host={"ranks": 2})
    own, whole = procs.device_mesh, procs.as_device_mesh()

    def place(x: torch.Tensor) -> Any:
        placement = Shard(0) if x.dim() and x.shape[0] > 1 else Replicate()
        return distribute(x, whole, placements=[placement])

    yield {"per rank": View(own.constant, own.activate), "global": View(place, whole.activate)}
    procs.stop().get(PATIENCE)
    close_session()


WRONG_IN_TORCH = {
    # One process itself is wrong: these kernels write to a strided `out=` as if it were dense.
    *("nn.functional.gelu", "narrow_copy", "nn.functional.avg_pool3d"),
    # It does not write to an `out=` of any subclass of Tensor.
    *("linalg.matrix_rank", "linalg.matrix_rank.hermitian"),
}


def compare(view: View, ops: Sequence[Any]) -> tuple[int, int]:
    """Compare all writes of these operators; return their number, and how many of them fail."""
    warnings.simplefilter("ignore")
    outcomes = [
        outcome
        for op in ops
        if name_of(op) not in RANDOM | UNINITIALIZED | WRONG_IN_TORCH
        for write in writes_of(op)
        for where in TARGETS
        for outcome in differences(view, write, where)
    ]
    if found := [outcome for outcome in outcomes if outcome not in (None, "fails")]:
        pytest.fail("\n".join(found), pytrace=False)
    return len(outcomes), outcomes.count("fails")


@pytest.mark.parametrize("name", ["per rank", "global"])
def test_a_write_leaves_what_it_leaves_in_one_process(views: dict[str, View], name: str) -> None:
    ops = [op for op in import_operators() if name_of(op) in CHOSEN]
    compared, failing = compare(views[name], ops)
    assert compared > 50
    assert failing > 20


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("name", ["per rank", "global"])
def test_every_write_leaves_what_it_leaves_in_one_process(views: dict[str, View], name: str, part: int) -> None:
    compared, failing = compare(views[name], import_operators()[part::PARTS])
    assert compared > LEAST
    assert failing > LEAST_FAILING


def is_refused_locally(op: Any, args: Any, kwargs: Any) -> bool:
    try:
        op(*args, **kwargs)
    except (RuntimeError, IndexError):
        return True
    except Exception:
        return False
    return False


@pytest.mark.long
@pytest.mark.parametrize("name", ["per rank", "global"])
def test_an_operator_that_checks_its_data_raises(views: dict[str, View], name: str) -> None:
    """Singular matrices, most of all: the checks are operators without a result."""
    view, refused, found = views[name], 0, []
    for op in import_operators():
        if not op.supports_dtype(torch.float32, "cpu") or name_of(op) in RANDOM:
            continue
        for sample in itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=False), 2):
            if not isinstance(sample.input, torch.Tensor) or sample.input.layout is not torch.strided:
                continue
            args = (sample.input * 0 - 1, *sample.args)
            if not is_refused_locally(op, args, sample.kwargs):
                continue
            refused += 1
            placed, kwargs = tree_map_only(torch.Tensor, view.place, (args, sample.kwargs))
            if view.error_of(lambda: op(*placed, **kwargs), placed[0]) is None:  # noqa: B023 - called at once
                found.append(name_of(op))
            elif not torch.equal(value(placed[0]), args[0]):
                found.append(f"{name_of(op)} changes its input")
    assert not found
    assert refused > 10
