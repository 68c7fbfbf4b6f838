"""Sharded tensors that look local: a product, a training step of a module, a rank that is killed while a loop runs."""

from __future__ import annotations

import monarch
import torch
from monarch.distributed import Mesh
from monarch.exceptions import DeviceMeshError
from torch import nn

STEPS = 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1024, 16)
        self.activation = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.linear(x))


def multiply(mesh: Mesh) -> torch.Tensor:
    tensor = torch.randn(1024, 1024)
    dt = monarch.distribute(tensor, mesh, sharding_spec=["data_parallel", None])
    product = dt @ dt.T
    expected = (tensor @ tensor.T).sum().item()
    print("sums are equal:", abs(product.sum().item() - expected) <= 1e-3 * abs(expected))
    return dt


def train(mesh: Mesh, batch: torch.Tensor) -> None:
    local = Net()
    model = monarch.module_to_mesh(local, mesh)
    inputs, target = batch.full_tensor(), torch.randn(1024, 16)
    losses = []
    for module, x in ((model, batch), (local, inputs)):
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
        for _ in range(STEPS):
            loss = nn.functional.mse_loss(module(x), target)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    pairs = zip(losses[:STEPS], losses[STEPS:], strict=True)
    print("losses are equal:", all(abs(one - other) <= 1e-5 * other for one, other in pairs))


def run_until_healed(mesh: Mesh, batch: torch.Tensor) -> None:
    total = batch.sum().item()
    for step in range(3):
        if step == 1:
            mesh.procs.slice(ranks=5).kill().get()
        try:
            doubled = mesh.execute(lambda x: x * 2, batch)
        except DeviceMeshError:
            print("step", step, "a rank died")
            mesh = monarch.heal_mesh(mesh)
            doubled = mesh.execute(lambda x: x * 2, batch)
        print("step", step, "sums are equal:", abs(doubled.sum().item() - 2 * total) <= 1e-3 * abs(total))


if __name__ == "__main__":
    torch.manual_seed(0)
    mesh = Mesh(shape=(4, 2), mesh_dim_names=("data_parallel", "model_parallel"))
    batch = multiply(mesh)
    train(mesh, batch)
    run_until_healed(mesh, batch)
    mesh.stop().get()
