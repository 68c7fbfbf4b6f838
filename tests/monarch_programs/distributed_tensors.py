"""Tensors on a mesh: data-parallel training with explicit collectives, a pipeline of two stages, a rank that dies."""

from __future__ import annotations

import monarch
import torch
from monarch import fetch_shard, no_mesh, remote
from monarch.actor import ProcMesh, this_host
from monarch.common._coalescing import compile as record
from monarch.common.device_mesh import DeviceMesh
from monarch.exceptions import DeviceMeshError
from monarch.mesh_controller import spawn_tensor_engine
from torch import nn

ROWS = 4


def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


scale_remotely = remote(scale, propagate="cached")


def train(mesh: DeviceMesh) -> None:
    """Fit y = 3 a - 2 b; each rank has its own rows."""
    with mesh.activate():
        model = nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            model.weight.zero_()
        x = torch.arange(ROWS * 2.0).view(ROWS, 2).sin() + mesh.rank("gpus")
        y = x @ torch.tensor([[3.0], [-2.0]])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

        def step() -> torch.Tensor:
            loss = (model(x) - y).square().mean()
            loss.backward()
            for parameter in model.parameters():
                parameter.grad.reduce_("gpus", "avg")
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        recorded = record(step)
        for _ in range(300):
            loss = recorded()
    weights = [fetch_shard(model.weight.detach(), gpus=rank).result() for rank in range(2)]
    print("weights", [round(number, 3) for number in weights[0][0].tolist()], torch.equal(*weights))
    print("loss", f"{loss.item():.3f}")


def run_pipeline(mesh: DeviceMesh) -> None:
    """Two stages, one on each rank; micro-batches go from one to the other."""
    first, second = mesh(gpus=0), mesh(gpus=1)
    results = []
    for number in range(3):
        with first.activate():
            half = torch.full((2,), float(number)) + 1
        with second.activate():
            results.append(scale_remotely(half.to_mesh(second), 10.0))
    print("pipeline", [monarch.inspect(result).tolist() for result in results])


def show_errors(procs: ProcMesh) -> None:
    with procs.activate():
        x = torch.zeros(3)
        failed = x.index_select(0, torch.tensor([5]))
        with no_mesh.activate():
            local = torch.ones(3)
        try:
            x + local
        except TypeError as error:
            print(type(error).__name__)
    try:
        fetch_shard(failed).result()
    except monarch.RemoteException as error:
        print("failed at", error.controller_frames[-1].name, "on rank", error.rank)
    print("others", fetch_shard(x + 1).result().tolist())


def lose_a_rank(procs: ProcMesh) -> None:
    with procs.activate():
        x = torch.ones(2)
    fetch_shard(x).result()
    procs.slice(gpus=1).kill().get()
    try:
        while True:
            fetch_shard(x, gpus=1).result()
    except DeviceMeshError:
        print("a rank died")
    healed = monarch.heal_mesh(procs)
    with healed.activate():
        print("healed", monarch.show(torch.ones(2).reduce("gpus"), gpus=1))


if __name__ == "__main__":
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    train(spawn_tensor_engine(procs))
    run_pipeline(spawn_tensor_engine(procs))
    show_errors(procs)
    lose_a_rank(procs)
    procs.stop().get()
