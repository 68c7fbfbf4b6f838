"""Errors: at the line, if the shapes tell; else at the fetch, with the line of the controller."""

from __future__ import annotations

import pytest
import torch

from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.host_ownership import when_ended
from meshbook.runtime.mesh.tensors import heal_mesh
from meshbook.runtime.tensor.failures import HEADLINE, DeviceMeshError, RemoteException
from meshbook.runtime.tensor.trees import fetch_shard

PATIENCE = 20.0


def value(tree, **dims):
    return fetch_shard(tree, **dims).get(PATIENCE)


def out_of_range(procs, size=3):
    """Return a tensor whose computation fails on the ranks: metadata do not tell the values of indices."""
    with procs.activate():
        return torch.zeros(size)[torch.tensor([5])]


def test_shapes_that_do_not_fit_raise_at_once(pair):
    with pair.activate():
        x, y = torch.zeros(2, 3), torch.zeros(2, 3)
        with pytest.raises(RuntimeError, match="reduction dim"):
            x @ y


def test_a_failure_is_raised_at_the_fetch_with_its_line(pair):
    x = out_of_range(pair)
    y = x + 1
    with pytest.raises(RemoteException, match="out of bounds") as caught:
        value(y, gpus=1)
    assert caught.value.rank == 1
    (frame,) = caught.value.controller_frames
    assert (frame.filename, frame.name) == (__file__, "out_of_range")
    assert "IndexError" in caught.value.worker_error_string
    assert "out_of_range" in str(caught.value)


def test_other_tensors_stay_usable(pair):
    with pair.activate():
        good = torch.ones(2)
    bad = out_of_range(pair)
    with pytest.raises(RemoteException):
        value([good, bad])
    assert value(good + 1).tolist() == [2, 2]


def test_the_first_failure_is_raised(pair):
    first = out_of_range(pair, 3)
    second = out_of_range(pair, 4)
    with pytest.raises(RemoteException, match="size 3"):
        value(first + second)


def test_a_value_that_was_to_change_has_failed(pair):
    with pair.activate():
        x = torch.zeros(3)
    x.add_(out_of_range(pair))
    with pytest.raises(RemoteException, match="out of bounds"):
        value(x)


def test_the_line_is_known_after_the_acknowledgement(pair):
    x = out_of_range(pair)
    pair.device_mesh.engine.wait()
    with pytest.raises(RemoteException) as caught:
        value(x)
    assert caught.value.controller_frames[0].name == "out_of_range"


def test_a_question_about_a_failed_value_raises(pair):
    with pytest.raises(RemoteException, match="out of bounds"):
        out_of_range(pair).nonzero()


# -- arguments that do not fit together -----------------------------------------------


def test_a_local_tensor_is_named(pair):
    with pair.activate():
        x = torch.zeros(3)
    with pytest.raises(TypeError, match=HEADLINE) as caught:
        x + torch.ones(3)
    assert "%0 float32[3]: ok" in str(caught.value)
    assert "%1 float32[3]: a local (non-distributed) tensor" in str(caught.value)


def test_a_local_number_is_taken(pair):
    with pair.activate():
        x = torch.zeros(3)
    assert value(x + torch.tensor(2.0)).tolist() == [2, 2, 2]


def test_tensors_of_two_meshes_are_refused(pair, grid):
    with pair.activate():
        x = torch.zeros(3)
    with grid.activate():
        y = torch.zeros(3)
        with pytest.raises(TypeError, match=r"%0.*wrong mesh"):
            x + 1
    with pytest.raises(TypeError, match=r"%1.*wrong mesh"):
        torch.cat([x, y])
    with pytest.raises(TypeError, match="one mesh"):
        fetch_shard([x, y])


def test_a_dropped_tensor_is_refused(pair):
    with pair.activate():
        x = torch.zeros(3)
    x.drop()
    with pytest.raises(TypeError, match=r"%0.*dropped"):
        x + 1
    with pytest.raises(TypeError, match="dropped"):
        fetch_shard(x)


def test_generators_stay_here(pair):
    with pair.activate(), pytest.raises(TypeError, match="generators stay"):
        torch.rand(3, generator=torch.Generator())


def kill(procs):
    """End processes; when this returns, this node knows it."""
    ended = when_ended(current_node(), [node.node for node in procs.nodes])
    procs.kill().get(PATIENCE)
    ended.get(PATIENCE)


# -- the end of a rank ----------------------------------------------------------------


def test_a_dead_rank_is_an_error_of_its_mesh(make_procs, pair):
    procs = make_procs(gpus=2)
    with procs.activate():
        x = torch.zeros(3)
    assert value(x).tolist() == [0, 0, 0]
    kill(procs.slice(gpus=1))
    with pytest.raises(DeviceMeshError, match="heal_mesh"):
        value(x, gpus=1)
    with pytest.raises(DeviceMeshError):
        x + 1
    with pair.activate():
        assert value(torch.zeros(1)).tolist() == [0]


def test_a_healed_mesh_has_new_tensors(make_procs):
    procs = make_procs(gpus=2)
    with procs.activate():
        x = torch.ones(3)
    assert value(x).tolist() == [1, 1, 1]
    kill(procs.slice(gpus=1))
    assert procs.heal().get(PATIENCE) == [1]
    with pytest.raises(DeviceMeshError, match="lost"):
        value(x)
    with procs.activate():
        y = torch.ones(2).reduce("gpus")
    assert value(y, gpus=1).tolist() == [2, 2]


def test_a_healed_device_mesh_is_one_to_go_on_with(make_procs):
    procs = make_procs(gpus=3)
    mesh = procs.device_mesh.slice(gpus=slice(1, 3))
    kill(procs.slice(gpus=1))
    mesh = heal_mesh(mesh)
    with mesh.activate():
        y = torch.ones(2).reduce("gpus")
    assert value(y, gpus=1).tolist() == [2, 2]
    assert heal_mesh(mesh) is mesh
    assert heal_mesh(procs) is procs


def test_a_stopped_engine_says_so(make_procs):
    procs = make_procs(gpus=1)
    with procs.activate() as mesh:
        x = torch.ones(3)
    mesh.exit()
    mesh.exit()
    with pytest.raises(DeviceMeshError, match="stopped"):
        x + 1
    with procs.activate():
        assert value(torch.ones(1)).tolist() == [1]
