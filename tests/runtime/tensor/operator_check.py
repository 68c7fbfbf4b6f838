"""Runs PyTorch's own operator samples (`op_db`) on sharded tensors, forward and backward, beside plain tensors.

    python -m tests.runtime.tensor.operator_check --mesh 2 --samples 4 --placements dims

It prints how many operators are right, and why the others are not. `--placements dims` shards all tensors along
dimension 0 and then 1; `mixed` draws the placements of each tensor, sums and whole tensors included. The samples have
dimensions of 5, 10 and others: shards are uneven on 2 ranks, for example, and even on 5. With `--out PATH`, each rank
writes one JSON line for each operator to PATH.RANK.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import os
import random
import sys
import tempfile
import traceback
import types
import unittest
import warnings
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.utils._pytree import tree_flatten, tree_map

from meshbook.runtime.tensor.sharded.operators import OperatorRefused, ShardedOperators
from tests.runtime.tensor.whole_tensor import WholeTensor, full, shard

# Their values are drawn, or not defined.
LEFT_OUT = ["empty", "rand", "dropout", "bernoulli", "multinomial", "normal", "uniform", "cauchy", "exponential"]
LEFT_OUT += ["geometric", "log_normal", "sparse", "nonzero_static", "svd_lowrank", "pca_lowrank", "lobpcg"]


def import_operators() -> list[Any]:
    """Import torch's `op_db`, its list of operators with sample arguments."""
    if "expecttest" not in sys.modules:  # torch's tests import it, and its list of operators does not use it
        stand_in: Any = types.ModuleType("expecttest")
        stand_in.TestCase, stand_in.ACCEPT = unittest.TestCase, False
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo import core

    # To draw samples, torch walks the stack in search of a test case of its own: 20 ms, twice for each operator.
    common_utils.extract_test_fn = core.extract_test_fn = _no_test
    return list(op_db)


def _no_test() -> None:
    return None


def import_samples() -> list[Any]:
    """Return the operators that are checked on sharded tensors."""
    return [op for op in import_operators() if torch.float32 in op.supported_dtypes("cpu") and not is_left_out(op.name)]


def is_left_out(name: str) -> bool:
    return any(part in name for part in LEFT_OUT)


def key_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


class Check:
    """The check of all samples on one mesh."""

    def __init__(self, mesh: DeviceMesh, placements: str, *, verbose: bool = False) -> None:
        self.mesh = mesh
        self.verbose = verbose
        self.operators = ShardedOperators(mesh)
        self.placements = placements

    def check(self, op: Any, samples: int) -> dict[str, Any] | None:
        torch.manual_seed(1)
        try:
            drawn = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
            taken = list(itertools.islice(drawn, samples))
        except Exception:
            return None
        record: dict[str, Any] = {"op": key_of(op), "n": 0, "right": 0, "wrong": [], "refused": [], "raised": []}
        for dim in (0, 1):
            for at, sample in enumerate(taken):
                self.check_sample(op, sample, dim, f"dim {dim} sample {at}", record)
        return record

    def check_sample(self, op: Any, sample: Any, dim: int, where: str, record: dict[str, Any]) -> None:
        draw = random.Random(f"{record['op']} {where}")
        plain_inputs = tree_map(copied, (sample.input, sample.args, sample.kwargs))
        torch.manual_seed(3)
        try:
            plain = tensors_of(op.op(plain_inputs[0], *plain_inputs[1], **plain_inputs[2]))
        except Exception:
            return
        inputs = tree_map(lambda leaf: self.shard(leaf, dim, draw), (sample.input, sample.args, sample.kwargs))
        wholes = [leaf for leaf in tensors_of(inputs) if isinstance(leaf, WholeTensor)]
        if all(isinstance(one, Replicate) for whole in wholes for one in whole.sharded.placements):
            return
        record["n"] += 1
        shapes = [(tuple(one.shape), [str(p) for p in one.sharded.placements]) for one in wholes]
        where = f"{where} {shapes} {str(sample.kwargs)[:80]}"
        torch.manual_seed(3)
        step = "forward"
        try:
            out = tensors_of(op.op(inputs[0], *inputs[1], **inputs[2]))
            is_right = len(out) == len(plain) and all(
                self.equal(a, b, 1e-3, 1e-4) for a, b in zip(out, plain, strict=True)
            )
            if is_right:
                step = "backward"
                is_right = self.check_gradients(out, plain, tensors_of(inputs), tensors_of(plain_inputs))
        except OperatorRefused as error:
            record["refused"].append(f"{step} {where}: {error}")
        except Exception as error:
            record["raised"].append(f"{step} {where}: {type(error).__name__}: {str(error)[:600]}")
            if self.verbose:
                traceback.print_exc()
        else:
            if is_right:
                record["right"] += 1
            else:
                record["wrong"].append(f"{step} {where}")

    def check_gradients(self, out: list[Any], plain: list[Any], inputs: list[Any], plain_inputs: list[Any]) -> bool:
        pairs = [(a, b) for a, b in zip(out, plain, strict=True) if b.requires_grad and b.is_floating_point()]
        if not pairs:
            return True
        weights = [torch.linspace(0.5, 1.5, b.numel()).reshape(b.shape) for _, b in pairs]
        expected = torch.autograd.grad(
            sum((b * weight).sum() for (_, b), weight in zip(pairs, weights, strict=True)),
            [one for one in plain_inputs if one.requires_grad],
            allow_unused=True,
        )
        got = torch.autograd.grad(
            sum((a * self.replicate(weight)).sum() for (a, _), weight in zip(pairs, weights, strict=True)),
            [one for one in inputs if one.requires_grad],
            allow_unused=True,
        )
        return all(
            (a is None) == (b is None) and (a is None or self.equal(a, b, 2e-3, 2e-4))
            for a, b in zip(got, expected, strict=True)
        )

    def equal(self, got: Any, expected: Tensor, relative: float, absolute: float) -> bool:
        got, expected = full(got), expected.detach()
        if got.dtype != expected.dtype or got.shape != expected.shape:
            return False
        if not got.is_complex():
            got, expected = got.to(torch.float64), expected.to(torch.float64)
        return torch.allclose(got, expected, rtol=relative, atol=absolute, equal_nan=True)

    def replicate(self, weight: Tensor) -> WholeTensor:
        return shard(weight, [Replicate()] * self.mesh.ndim, self.operators)

    def shard(self, leaf: Any, dim: int, draw: random.Random) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if self.placements == "dims":
            can_shard = leaf.dim() > dim and leaf.shape[dim] >= 2
            placements = [Shard(dim) if can_shard else Replicate() for _ in range(self.mesh.ndim)]
        else:
            choices: list[Any] = [Shard(dim) for dim in range(leaf.dim())] * 2 + [Replicate()]
            if leaf.is_floating_point() and leaf.isfinite().all():
                choices.append(Partial())
            placements = [draw.choice(choices) for _ in range(self.mesh.ndim)]
        whole = shard(leaf, placements, self.operators)
        return whole.requires_grad_() if leaf.requires_grad and leaf.is_floating_point() else whole


@contextlib.contextmanager
def seeding(operators: ShardedOperators) -> Iterator[None]:
    """Let `torch.manual_seed` seed the sharded operators, too: samples of random operators call it themselves."""
    seed_alone = torch.manual_seed

    def seed_both(seed: int) -> torch.Generator:
        operators.random.manual_seed(seed)
        return seed_alone(seed)

    torch.manual_seed = seed_both
    try:
        yield
    finally:
        torch.manual_seed = seed_alone


def check_part(mesh: DeviceMesh, placements: str, samples: int, part: int, parts: int) -> list[dict[str, Any]]:
    """Check each `parts`-th operator, from number `part` on."""
    check = Check(mesh, placements)
    with seeding(check.operators):
        records = [check.check(op, samples) for op in import_samples()[part::parts]]
    return [record for record in records if record is not None and record["n"]]


def summarize(records: Iterable[dict[str, Any]]) -> str:
    """Return how many operators have which outcome, that of their worst sample; a line for each that is not right."""
    counts = dict.fromkeys(("right", "refused", "raised", "wrong"), 0)
    lines = []
    for record in records:
        outcome = next((each for each in ("wrong", "raised", "refused") if record[each]), "right")
        counts[outcome] += 1
        if outcome != "right":
            lines.append(f"{outcome}: {record['op']}: {record[outcome][0].splitlines()[0]}")
    listed = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return "\n".join([f"{sum(counts.values())} operators with a sample that can be sharded: {listed}", *lines])


def copied(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    copy = leaf.detach().clone()
    return copy.requires_grad_() if leaf.requires_grad and leaf.is_floating_point() else copy


def tensors_of(tree: Any) -> list[Any]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def run_rank(rank: int, options: argparse.Namespace, rendezvous: str) -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    shape = tuple(map(int, options.mesh.split("x")))
    size = torch.Size(shape).numel()
    dist.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    check = Check(init_device_mesh("cpu", shape), options.placements, verbose=bool(options.only) and rank == 0)
    chosen = [op for op in import_samples() if not options.only or key_of(op) in options.only]
    with open(f"{options.out}.{rank}.jsonl", "w", encoding="utf-8") as out, seeding(check.operators):
        for op in chosen[options.part :: options.parts]:
            record = check.check(op, options.samples)
            if record is not None:
                print(json.dumps(record), file=out, flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", default="2")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--placements", choices=("dims", "mixed"), default="dims")
    parser.add_argument("--out")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    options = parser.parse_args()
    size = torch.Size(map(int, options.mesh.split("x"))).numel()
    with tempfile.TemporaryDirectory() as folder:
        options.out = options.out or str(Path(folder) / "records")
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        torch.multiprocessing.spawn(run_rank, (options, str(Path(folder) / "rendezvous")), nprocs=size)
        lines = Path(f"{options.out}.0.jsonl").read_text(encoding="utf-8").splitlines()
        print(summarize(record for record in map(json.loads, lines) if record["n"]))


if __name__ == "__main__":
    main()
