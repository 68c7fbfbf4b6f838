"""The public names of the tensor engine, in the facade. Only their use imports torch."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import meshbook
from meshbook.runtime.tensor import device_mesh, trees


def test_the_facade_has_the_names():
    assert meshbook.fetch_shard is trees.fetch_shard
    assert set(meshbook._TENSORS) <= set(dir(meshbook))
    for name in meshbook._TENSORS:
        assert inspect.getdoc(getattr(meshbook, name)), name
    with pytest.raises(AttributeError, match="no attribute 'fetch_shards'"):
        _ = meshbook.fetch_shards


@pytest.mark.process
def test_the_facade_does_not_import_torch():
    code = "import meshbook, sys; assert hasattr(meshbook.ProcMesh, 'activate'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_engine_is_that_of_its_mesh(pair):
    assert device_mesh.spawn_tensor_engine(pair) is pair.device_mesh


def test_trees_go_through_the_functions(grid):
    import torch

    with grid.activate():
        x = torch.ones(2) * grid.rank_tensor(["hosts", "gpus"])
    total = trees.reduce({"x": x}, "gpus")["x"]
    assert trees.inspect(total, hosts=1).tolist() == [5, 5]
    part = trees.slice_mesh([x], hosts=1)[0]
    local, moved = trees.to_mesh((torch.arange(2), part), grid.device_mesh(hosts=0))
    assert trees.inspect(local + moved, gpus=1).tolist() == [3, 4]
    trees.reduce_([x], "hosts")
    assert trees.inspect(x).tolist() == [2, 2]
