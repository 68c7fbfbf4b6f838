"""A user's program on several hosts: python program.py LAUNCHER '{"arguments": ...}', with two ranks on each host.

It prints a line of JSON about its ranks. On `train` it trains the quick-start's network with DistributedDataParallel.
On `drain` it drains the second host. On `detach` it leaves the run to a program with `attach RUN`. On `watch`, for each
line "watch", it waits for a call that the loss of a host ends, and prints what the call raised, when, and which hosts
still answer. With `job` as the launcher it runs a `SlurmJob` of one host.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import meshbook
from meshbook import Actor, endpoint
from meshbook.monarch.jobs import SlurmJob
from meshbook.runs import DetachError, attach, detach
from meshbook.runtime.hosts.faults import set_unhandled_fault_hook

SHOWN = ("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "LOCAL_RANK", "RAY_", "SLURMD_NODENAME")


def describe() -> dict[str, Any]:
    """Return facts about this rank."""
    environment = {name: os.environ[name] for name in os.environ if name.startswith(SHOWN)}
    return {"rank": int(os.environ["RANK"]), "pid": os.getpid(), "environment": environment}


class Trainer(Actor):
    """One rank of the training."""

    @endpoint
    def train(self, pictures: Any, digits: Any) -> dict[str, Any]:
        import torch
        import torch.distributed as dist
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        dist.init_process_group("gloo")
        rank, size = dist.get_rank(), dist.get_world_size()
        share = slice(rank, 1200, size)
        x, y = torch.tensor(pictures[share], dtype=torch.float32) / 16, torch.tensor(digits[share])
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(20):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        weights = sum(float(parameter.double().sum()) for parameter in model.parameters())
        del model, optimizer
        dist.destroy_process_group()
        return {**describe(), "first": losses[0], "last": losses[-1], "weights": weights}

    @endpoint
    def total(self) -> float:
        """Return the sum of 1 over all ranks of this mesh."""
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        one = torch.ones(1)
        dist.all_reduce(one)
        dist.destroy_process_group()
        return one.item()

    @endpoint
    def look(self) -> dict[str, Any]:
        return describe()

    @endpoint
    def wait(self) -> None:
        time.sleep(600)

    @endpoint
    def answer(self) -> int:
        return int(os.environ["RANK"])


def main() -> None:
    set_unhandled_fault_hook(lambda failure: None)  # otherwise the loss of a host ends this program
    launcher, arguments = sys.argv[1], json.loads(sys.argv[2])
    if "attach" in sys.argv:
        trainers = attach(sys.argv[-1])["trainers"].actors["trainers"]
        say(ranks=list(trainers.look.call().get(100).values()))
        sys.stdin.readline()
        meshbook.close_session()
        say(closed=True)
        return
    if launcher == "job":
        run_job(**arguments)
        return
    hosts = getattr(meshbook.hosts, launcher)(**arguments)
    procs = hosts.spawn_procs(per_host={"gpus": 2}, name="trainers")
    trainers = procs.spawn("trainers", Trainer)
    if "train" in sys.argv:
        from sklearn.datasets import load_digits  # its import takes a second

        training = trainers.train.call(*load_digits(return_X_y=True))
        # Meanwhile, on the same hosts: each mesh has a rendezvous of its own.
        parts = [hosts, hosts.slice(hosts=slice(1, 3)), hosts.slice(hosts=0)]
        others = [part.spawn_procs(per_host={"gpus": 1}).spawn("others", Trainer) for part in parts]
        totals = [other.total.call() for other in others]
        ranks = list(training.get(200).values())
        found = [list(total.get(200).values()) for total in totals]
        say(hosts=dict(hosts.extent), ranks=ranks, totals=found)
    else:
        ranks = list(trainers.look.call().get(100).values())
        say(hosts=dict(hosts.extent), ranks=ranks)
    if "detach" in sys.argv:
        try:
            say(run=detach())
            return
        except DetachError as error:
            say(error=str(error))
    if "drain" in sys.argv:
        rest = procs.drain(hosts.names[1])
        rest.initialized.get(100)
        found = list(rest.all_of(trainers).look.call().get(100).values())
        say(ranks=[each["rank"] for each in found], pids=[each["pid"] for each in found])
    if "watch" in sys.argv:
        waiting = {index: trainers.slice(hosts=index, gpus=0).wait.call_one() for index in range(hosts.size())}
        say(waits=len(waiting))
        while sys.stdin.readline() == "watch\n":  # the test is about to take a host away
            ended: dict[int, str] = {}
            while not ended:
                ended |= {index: str(future.exception()) for index, future in waiting.items() if future.done()}
                time.sleep(0.01)
            at = time.monotonic()  # of the machine: the test has the same clock
            waiting = {index: future for index, future in waiting.items() if index not in ended}
            rest = [trainers.slice(hosts=index, gpus=1).answer.call_one().get(60) for index in waiting]
            say(lost=ended, at=at, rest=rest)
    else:
        sys.stdin.readline()
    meshbook.close_session()
    say(closed=True)


def run_job(**arguments: Any) -> None:
    job = SlurmJob({"trainers": 1}, **arguments)
    procs = job.state(cached_path=None).trainers.spawn_procs(per_host={"gpus": 2})
    ranks = list(procs.spawn("trainers", Trainer).look.call().get(100).values())
    say(ranks=ranks, active=job.active)
    job.kill()
    while job.active:
        time.sleep(0.1)
    meshbook.close_session()


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
