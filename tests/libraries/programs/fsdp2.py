"""FSDP2, and its weights through torch.distributed.checkpoint (DCP)."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def make_model(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return fully_shard(model, mesh=device_mesh)


dist.init_process_group("gloo")
device_mesh = init_device_mesh("cpu", (dist.get_world_size(),))
model = make_model(seed=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(8, 4)).sum().backward()
optimizer.step()
weight = model[0].weight
assert weight.to_local().shape == (4, 4)  # half of the rows

folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(folder)
dcp.save(get_model_state_dict(model), checkpoint_id=folder[0])

loaded = make_model(seed=1)
assert not torch.equal(loaded[0].weight.full_tensor(), weight.full_tensor())
state = get_model_state_dict(loaded)
dcp.load(state, checkpoint_id=folder[0])
set_model_state_dict(loaded, state)
assert torch.equal(loaded[0].weight.full_tensor(), weight.full_tensor())
dist.destroy_process_group()
