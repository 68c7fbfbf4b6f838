"""torch.distributed.rpc: each rank calls the other, and holds a value there."""

import os

import torch
from torch.distributed import rpc

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"rank{rank}", rank=rank, world_size=size)
other = f"rank{(rank + 1) % size}"
assert rpc.rpc_sync(other, torch.add, (torch.ones(2), rank)).tolist() == [1.0 + rank] * 2
held = rpc.remote(other, torch.full, ((2,), 7.0))
assert held.to_here().tolist() == [7.0, 7.0]
del held
rpc.shutdown()
