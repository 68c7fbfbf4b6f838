"""DistributedDataParallel: the ranks agree on gradients, and on the weights after a step."""

import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(rank, size):
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.full((8, 4), float(rank + 1))).sum().backward()
    # Rank 0 alone has gradients of 8, rank 1 of 16.
    assert torch.equal(model.module.weight.grad, torch.full((2, 4), 12.0))
    optimizer.step()
    weights = [torch.empty(2, 4) for _ in range(size)]
    dist.all_gather(weights, model.module.weight.detach())
    assert torch.equal(weights[0], weights[1])


dist.init_process_group("gloo")
train(dist.get_rank(), dist.get_world_size())
gc.collect()
dist.destroy_process_group()
