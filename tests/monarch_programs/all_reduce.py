"""Two ways to a gloo all-reduce: actors in an environment like torchrun's, and a script that torchrun could run."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from monarch.actor import Actor, current_rank, endpoint, this_host
from monarch.spmd import SPMDActor, setup_torch_elastic_env

SCRIPT = Path(__file__).with_name("reduce_script.py")
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")


class Reducer(Actor):
    @endpoint
    def environment(self) -> str:
        return " ".join(os.environ[name] for name in NAMES)

    @endpoint
    def reduce(self, value: float) -> float:
        dist.init_process_group("gloo")
        tensor = torch.tensor(value * (current_rank().rank + 1))
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        return float(tensor)


def reduce_in_actors() -> None:
    procs = this_host().spawn_procs(per_host={"gpus": 3})
    setup_torch_elastic_env(procs)
    reducers = procs.spawn("reducers", Reducer)
    print(*NAMES)
    for text in reducers.environment.call().get().values():
        print(text)
    print("actors", *reducers.reduce.call(0.5).get().values())
    procs.stop().get()


def reduce_in_a_script(folder: Path) -> None:
    procs = this_host().spawn_procs(per_host={"gpus": 2})
    ranks = procs.spawn("ranks", SPMDActor)
    address, port = ranks.slice(gpus=0).get_host_port.call_one(None).get()
    ended = ranks.main.call(address, port, [str(SCRIPT), "--out", str(folder)]).get()
    print("ended", *ended.values())
    procs.stop().get()
    for file in sorted(folder.iterdir()):
        print(file.name, file.read_text())


if __name__ == "__main__":
    reduce_in_actors()
    with tempfile.TemporaryDirectory() as folder:
        reduce_in_a_script(Path(folder))
