"""Fits a line in three dimensions: loaders make batches, trainers gradients, and a parameter server takes the steps.

Each actor is given the mesh that it needs as an argument: the trainers the loaders, the server the trainers.
"""

from __future__ import annotations

import torch
from monarch.actor import Accumulator, Actor, current_rank, endpoint, shutdown_context, this_host
from torch import Tensor

TRUTH = torch.tensor([2.0, -1.0, 0.5])
RANKS = 2
STEPS = 80
BATCH = 16
RATE = 0.1


class Loader(Actor):
    """Makes batches, the same ones in every run."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed + current_rank().rank)
        self.made = 0

    @endpoint
    def next_batch(self, size: int) -> tuple[Tensor, Tensor]:
        """Inputs of shape (size, 3), and targets of shape (size,)."""
        self.made += size
        inputs = torch.randn(size, 3, generator=self.generator)
        return inputs, inputs @ TRUTH

    @endpoint
    def count(self) -> int:
        return self.made


class Trainer(Actor):
    """Takes its batches from the loader of its own rank."""

    def __init__(self, loaders: Loader) -> None:
        self.loader = loaders.slice(gpus=current_rank()["gpus"])
        self.held_back = self.loader.next_batch.call_one(BATCH).get()

    @endpoint
    def gradient(self, weights: Tensor) -> Tensor:
        weights.requires_grad_()
        self.measure(weights, self.loader.next_batch.call_one(BATCH).get()).backward()
        return weights.grad

    @endpoint
    def loss(self, weights: Tensor) -> float:
        """Of the batch that is never trained on."""
        return float(self.measure(weights, self.held_back))

    def measure(self, weights: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, targets = batch
        return torch.nn.functional.mse_loss(inputs @ weights, targets)


class ParameterServer(Actor):
    """Holds the weights."""

    def __init__(self, trainers: Trainer) -> None:
        self.trainers = trainers
        self.weights = torch.zeros(3)
        self.gradients = Accumulator(trainers.gradient, torch.zeros(3), torch.add)

    @endpoint
    def step(self) -> None:
        self.weights -= RATE * self.gradients.accumulate(self.weights).get() / self.trainers.size()

    @endpoint
    def losses(self) -> list[float]:
        return list(self.trainers.loss.call(self.weights).get().values())

    @endpoint
    def read(self) -> Tensor:
        return self.weights


def main() -> None:
    host = this_host()
    loaders = host.spawn_procs(per_host={"gpus": RANKS}).spawn("loaders", Loader, 17)
    trainers = host.spawn_procs(per_host={"gpus": RANKS}, name="training").spawn("trainers", Trainer, loaders)
    server = host.spawn_procs().spawn("server", ParameterServer, trainers)

    print("loss before", *server.losses.call_one().get())
    for _ in range(STEPS):
        server.step.broadcast()
    # Messages of one sender arrive in order, so the steps have been taken by then.
    print("loss after", *server.losses.call_one().get())
    weights = server.read.call_one().get()
    print("weights", *(round(weight, 3) for weight in weights.tolist()))
    print("one of them says", trainers.loss.choose(weights).get() < 1e-6)
    print("samples", *(count.get() for count in loaders.count.stream()))
    shutdown_context().get()


if __name__ == "__main__":
    main()
