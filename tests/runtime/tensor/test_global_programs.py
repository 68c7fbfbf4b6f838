"""Random programs on the tensors of a mesh give what they give in one process."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard

from meshbook.runtime.hosts.session import close_session, current_session
from meshbook.runtime.tensor.distributing import distribute
from tests.runtime.tensor.programs import OPERATIONS, Step, apply

PATIENCE = 60.0
SHAPES = {"4": (4,), "2x2": (2, 2)}
pytestmark = pytest.mark.process

numbers = st.integers(0, 11)
steps = st.lists(st.builds(Step, st.sampled_from(OPERATIONS), numbers, numbers, numbers), min_size=1, max_size=12)
shapes = st.lists(st.integers(1, 6), max_size=3).map(tuple)


@pytest.fixture(scope="module")
def meshes():
    procs = current_session().host.spawn_procs(per_host={"ranks": 4})
    yield {name: procs.as_device_mesh(shape=shape) for name, shape in SHAPES.items()}
    procs.stop().get(PATIENCE)
    close_session()


def placements(layout, tensor, mesh):
    choices = [Replicate(), Partial(), *(Shard(dim) for dim in range(tensor.dim()))]
    return [choices[layout[dim % len(layout)] % len(choices)] for dim in range(mesh.ndim)]


def partner_of(plain, index, second):
    """Return the index of a tensor with the same shape."""
    candidates = [(second + step) % len(plain) for step in range(len(plain))]
    return next(each for each in candidates if plain[each].shape == plain[index].shape)


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(SHAPES)), shape=shapes, layout=st.tuples(numbers, numbers), program=steps)
def test_a_program_gives_the_same_values_as_in_one_process(meshes, name, shape, layout, program):
    mesh = meshes[name]
    start = torch.arange(1.0, torch.Size(shape).numel() + 1).reshape(shape) / 8
    plain = [start, start.flip(0).clone() if start.dim() else start + 1]
    whole = [distribute(each, mesh, placements(layout, each, mesh)) for each in plain]
    for step in program:
        index = step.first % len(plain)
        other = partner_of(plain, index, step.second)
        expected = apply(step, plain[index], plain[other])
        if expected is None:
            continue
        if step.operation == "reshard":
            got = whole[index].redistribute(placements((step.number, step.second), plain[index], mesh))
        else:
            got = apply(step, whole[index], whole[other])
        if expected is not plain[index]:
            plain.append(expected)
            whole.append(got)
    for got, expected in zip(whole, plain, strict=True):
        torch.testing.assert_close(got.full_tensor(), expected, rtol=1e-4, atol=1e-5, equal_nan=True)
