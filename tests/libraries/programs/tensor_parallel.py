"""Tensor parallelism: two layers, split by columns and by rows, compute what they compute as a whole."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
device_mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
inputs = torch.ones(3, 4)
whole = model(inputs)
split = parallelize_module(model, device_mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
assert split[0].weight.to_local().shape == (4, 4)
assert torch.allclose(split(inputs), whole)
split(inputs).sum().backward()
assert split[2].weight.grad.to_local().shape == (2, 4)
dist.destroy_process_group()
