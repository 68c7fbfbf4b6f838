"""Lightning Fabric: it trains on the ranks that there are, and starts none of its own."""

import gc

import torch
import torch.distributed as dist
from lightning.fabric import Fabric


def train(fabric):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(model(torch.full((8, 4), float(fabric.global_rank + 1))).sum())
    assert torch.equal(model.weight.grad, torch.full((2, 4), 12.0))
    optimizer.step()


fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
fabric.launch()
assert (fabric.world_size, fabric.global_rank) == (2, dist.get_rank())
train(fabric)
gc.collect()
dist.destroy_process_group()
