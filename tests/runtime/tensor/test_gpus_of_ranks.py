"""A controller without a GPU, and ranks that have some: what it names a GPU is the CPU of the ranks here."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from meshbook import Mesh, distribute, remote
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.tensor import engine, metadata, worker
from meshbook.runtime.tensor.device_mesh import DeviceMesh
from tests.runtime.tensor.conftest import value

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def gpus_of_ranks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let commands name the CPU where they name a GPU; return what they named."""
    named: list[str] = []

    def reduce_device(device: torch.device) -> tuple[Any, ...]:
        named.append(str(device))
        return torch.device, ("cpu" if device.type == "cuda" else str(device),)

    monkeypatch.setitem(copyreg.dispatch_table, torch.device, reduce_device)
    monkeypatch.setattr(metadata.Meta, "has_stand_in", False)
    return named


@pytest.fixture
def mesh(pair: ProcMesh) -> Iterator[DeviceMesh]:
    """The per-rank view of two ranks."""
    made = pair.device_mesh
    vars(made.engine)["has_gpus_to_name"] = True
    yield made
    del vars(made.engine)["has_gpus_to_name"]


@pytest.fixture(scope="module")
def global_mesh(make_procs: Callable[..., ProcMesh]) -> Mesh:
    """The global view of one rank, whose tensors are on a GPU for the controller."""
    made = make_procs(gpus=1).as_device_mesh()
    made.engine.device = "cuda"
    return made


FACTORIES: dict[str, Callable[[], torch.Tensor]] = {
    "zeros": lambda: torch.zeros(3, device="cuda"),
    "a number of a GPU": lambda: torch.zeros(3, device="cuda:0"),
    "a device": lambda: torch.ones(3, device=GPU),
    "data": lambda: torch.tensor([1.0, 2.0, 3.0], device="cuda"),
    "a number": lambda: torch.tensor(2.0, device="cuda"),
    "as_tensor": lambda: torch.as_tensor([1.0], device=GPU),
    "random": lambda: torch.randn(3, device="cuda"),
    "arange": lambda: torch.arange(3, device="cuda"),
    "to": lambda: torch.ones(3).to("cuda"),
    "to by name": lambda: torch.ones(3).to(device="cuda", dtype=torch.float64),
    "cuda": lambda: torch.ones(3).cuda(),
    "like": lambda: torch.zeros_like(torch.ones(3, device="cuda")),
    "new": lambda: torch.ones(3, device="cuda").new_zeros(2),
    "new of data": lambda: torch.ones(3, device="cuda").new_tensor([1.0]),
    "of another": lambda: torch.ones(2, device=torch.ones(3, device="cuda").device),
    "module": lambda: nn.Linear(2, 2, device="cuda").weight,
    "moved module": lambda: nn.Linear(2, 2).to("cuda").weight,
}


@pytest.mark.parametrize("name", FACTORIES)
def test_tensors_are_created_on_the_gpus_of_the_ranks(name: str, mesh: DeviceMesh) -> None:
    with mesh.activate():
        made = FACTORIES[name]()
        assert made.device == GPU
        assert not made.is_cuda  # libraries would call CUDA in this process
        assert value(made).device.type == "cpu"


@pytest.mark.parametrize(("on_host", "has_rank", "expected"), [(0, True, False), (1, False, False), (1, True, True)])
def test_ranks_are_asked_for_gpus_unless_they_are_of_this_host_without_any(
    on_host: int, has_rank: bool, expected: bool, pair: ProcMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "count_gpus", lambda: on_host)
    monkeypatch.setattr(worker, "has_gpu", lambda local_rank: has_rank)
    asked = pair.device_mesh.engine
    vars(asked).pop("has_gpus_to_name", None)
    assert asked.has_gpus_to_name == expected
    del vars(asked)["has_gpus_to_name"]


def test_commands_name_gpus(mesh: DeviceMesh, gpus_of_ranks: list[str]) -> None:
    with mesh.activate():
        made = torch.full((5,), 1, device="cuda")
        value(torch.full((6,), 1, device=made.device))
        value(made.new_full((7,), 1, device="cuda"))
    assert set(gpus_of_ranks) == {"cuda"}


def test_a_device_scope_names_the_gpus_of_the_ranks(mesh: DeviceMesh) -> None:
    with mesh.activate(), torch.device("cuda"):
        assert torch.zeros(2).device == GPU


def test_tensors_go_to_the_cpu_of_the_ranks_and_back(mesh: DeviceMesh) -> None:
    with mesh.activate():
        there = torch.ones(2, device="cuda", requires_grad=True)
    back = there.cpu()
    assert (back.device.type, there.to("cpu").device.type) == ("cpu", "cpu")
    assert back.to("cuda").device == back.cuda().device == GPU
    assert there.to("cuda") is there
    (back * 2).sum().backward()
    assert there.grad is not None
    assert there.grad.device == GPU
    assert value(there.grad).tolist() == [2, 2]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_training_step_is_that_of_the_cpu(optimizer: Any, mesh: DeviceMesh) -> None:
    def train(device: str, batch: torch.Tensor, model: nn.Module) -> nn.Module:
        steps = optimizer(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = nn.functional.cross_entropy(model(batch), torch.zeros(4, dtype=torch.int64, device=device))
            steps.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            steps.step()
        return model

    torch.manual_seed(0)
    local = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2))
    start = {name: each.clone() for name, each in local.state_dict().items()}
    expected = train("cpu", torch.ones(4, 3), local)
    with mesh.activate():
        model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2)).to("cuda")
        with torch.no_grad():
            for name, each in model.named_parameters():
                each.copy_(torch.tensor(start[name].tolist(), device="cuda"))
        train("cuda", torch.ones(4, 3, device="cuda"), model)
    for theirs, ours in zip(model.parameters(), expected.parameters(), strict=True):
        assert theirs.device == GPU
        torch.testing.assert_close(value(theirs), ours.detach())


def test_autocast_of_the_cpu_converts_what_is_on_the_gpus(mesh: DeviceMesh) -> None:
    with mesh.activate():
        x = torch.ones(2, 2, device="cuda", requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            made = x @ x
        made.sum().backward()
    assert (made.dtype, made.device) == (torch.bfloat16, GPU)
    assert value(x.grad).tolist() == [[4, 4], [4, 4]]


def test_values_are_fetched_reduced_and_printed(mesh: DeviceMesh) -> None:
    with mesh.activate():
        x = torch.ones(2, device="cuda")
        assert x.reduce("gpus", "sum").device == GPU
    assert x.tolist() == [1, 1]
    assert x.sum().item() == 2
    assert "MeshTensor(shape=(2,)" in repr(x)
    assert (x > 0).all()
    assert x[x > 0].tolist() == [1, 1]


def test_remote_functions_keep_the_device(mesh: DeviceMesh) -> None:
    double = remote(lambda x: x @ x, propagate=lambda x: x @ x)
    with mesh.activate():
        made = double(torch.ones(2, 2, device="cuda"))
    assert made.device == GPU
    assert value(made).tolist() == [[2, 2], [2, 2]]


def test_the_global_view_computes_gradients_there(global_mesh: Mesh) -> None:
    small = distribute(torch.ones(4, 4), global_mesh, ["gpus", None])
    large = distribute(torch.ones(256, 256), global_mesh, ["gpus", None])
    weight = distribute(torch.nn.Parameter(torch.ones(256, 4)), global_mesh)
    assert {each.device for each in (small, large, weight)} == {GPU}
    adam = torch.optim.Adam([weight], lr=0.5)
    loss = ((large @ weight).sum(0) * small.mean()).sum()
    loss.backward()
    adam.step()
    assert weight.grad.full_tensor().unique().tolist() == [256]
    assert str(weight.detach()[:1]) == str(torch.full((1, 4), 0.5))
    with global_mesh.activate():
        assert torch.zeros(3, device="cuda").device == torch.zeros(3).device == GPU
        assert (torch.tensor([1.0], device="cuda") + torch.ones(1)).tolist() == [2]


def test_the_cpu_may_be_named_with_a_number_where_no_rank_has_a_gpu(pair: ProcMesh) -> None:
    with pair.activate():
        made = torch.hann_window(2, device="cpu:0")
    assert made.device.type == "cpu"
    assert value(made).tolist() == [0, 1]
