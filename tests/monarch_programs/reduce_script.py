"""What `all_reduce.py` runs on every rank: knows torch, and nothing of actors."""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
options = parser.parse_args()

dist.init_process_group("gloo")
tensor = torch.arange(3.0) + dist.get_rank()
dist.all_reduce(tensor)
text = f"{tensor.tolist()} by {os.environ['LOCAL_RANK']} of {dist.get_world_size()}, {Path(sys.argv[0]).name}"
(options.out / f"rank{dist.get_rank()}").write_text(text)
dist.destroy_process_group()
