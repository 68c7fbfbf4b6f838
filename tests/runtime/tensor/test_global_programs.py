"""Random programs on the tensors of a mesh give what they give in one process, in both views.

They consist of views, changes in place, reductions, reshards and operations that fail, on tensors that may be empty or
sharded unevenly. After an operation that has failed, all tensors have the values that they have in one process.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard

from meshbook.runtime.hosts.session import close_session, current_session
from meshbook.runtime.tensor.distributing import distribute
from meshbook.runtime.tensor.failures import RemoteException
from meshbook.runtime.tensor.trees import fetch_shard
from tests.runtime.tensor.programs import OPERATIONS, Step, apply_or_fail
from tests.support import PATIENCE

SHAPES = {"4": (4,), "2x2": (2, 2)}
PER_RANK = "per rank"
pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore:.*on expanded tensors is deprecated")]

numbers = st.integers(0, 11)
steps = st.lists(st.builds(Step, st.sampled_from(OPERATIONS), numbers, numbers, numbers), min_size=1, max_size=12)
shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)
programs = given(shape=shapes, layout=st.tuples(numbers, numbers), program=steps)
options = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def session():
    yield current_session()
    close_session()


@pytest.fixture(scope="module", params=[PER_RANK, *SHAPES])
def mesh(session, request):
    procs = session.host.spawn_procs(per_host={"ranks": 4})
    procs.initialized.get(PATIENCE)  # a check compares the processes before and after each test
    shape = SHAPES.get(request.param)
    yield procs.device_mesh if shape is None else procs.as_device_mesh(shape=shape)
    procs.stop().get(PATIENCE)


def placements(layout, tensor, mesh):
    choices = [Replicate(), Partial(), *(Shard(dim) for dim in range(tensor.dim()))]
    return [choices[layout[dim % len(layout)] % len(choices)] for dim in range(mesh.ndim)]


def partner_of(plain, index, second):
    """Return the index of a tensor with the same shape."""
    candidates = [(second + step) % len(plain) for step in range(len(plain))]
    return next(each for each in candidates if plain[each].shape == plain[index].shape)


def value(tensor):
    return tensor.full_tensor() if tensor._place.is_global else fetch_shard(tensor, ranks=1).get(PATIENCE)


def fetch_all(tensors):
    """Return all values, once each failure was raised, and whether there were any."""
    has_failed = False
    for tensor in tensors:
        try:
            value(tensor)
        except RemoteException:
            has_failed = True
    return [value(tensor) for tensor in tensors], has_failed


def run(mesh, shape, layout, program):
    """Run a program in one process and on a mesh, and compare all tensors after each failure, and at the end."""
    is_global = mesh.place().is_global
    start = torch.arange(1.0, torch.Size(shape).numel() + 1).reshape(shape) / 8
    plain = [start, start.flip(0).clone() if start.dim() else start + 1]
    if is_global:
        whole = [distribute(each, mesh, placements(layout, each, mesh)) for each in plain]
    else:
        whole = [mesh.constant(each) for each in plain]
    for step in program:
        index = step.first % len(plain)
        other = partner_of(plain, index, step.second)
        expected = apply_or_fail(step, plain[index], plain[other])
        if expected is None:
            continue
        if step.operation == "reshard" and is_global:
            got = whole[index].redistribute(placements((step.number, step.second), plain[index], mesh))
        else:
            with contextlib.nullcontext() if is_global else mesh.activate():
                got = apply_or_fail(step, whole[index], whole[other])
        if isinstance(expected, Exception):
            values, has_failed = fetch_all(whole)
            assert has_failed or isinstance(got, Exception), f"{step} does not raise {expected!r}"
            compare(values, plain)
        elif expected is not plain[index]:
            plain.append(expected)
            whole.append(got)
    compare([value(each) for each in whole], plain)


def compare(values, plain):
    for got, expected in zip(values, plain, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@settings(options, max_examples=30)
# Each writes to a tensor whose entries share memory, or that shares it with the base of a view.
@example(shape=(1,), layout=(2, 2), program=[Step("expand", 0, 0, 0), Step("fill_", 2, 0, 7)])
@example(shape=(4,), layout=(2, 0), program=[Step("expand", 0, 0, 0), Step("set_rows", 2, 0, 1)])
@example(shape=(5,), layout=(2, 2), program=[Step("expand", 0, 0, 0), Step("select", 2, 0, 0), Step("add_", 3, 0, 1)])
@example(shape=(2,), layout=(0, 0), program=[Step("unfold", 0, 0, 0), Step("add_", 0, 0, 1)])
@programs
def test_a_program_gives_the_same_values_as_in_one_process(mesh, shape, layout, program):
    run(mesh, shape, layout, program)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(options, max_examples=1000, derandomize=False)
@programs
def test_many_programs_give_the_same_values_as_in_one_process(mesh, shape, layout, program):
    run(mesh, shape, layout, program)
