"""A parameter server whose weights and gradients are buffers: workers read and write them, and it only takes the steps.

It fits a line in two dimensions. Then two players throw a ball: each writes it into the other one's memory.
"""

from __future__ import annotations

from array import array

from monarch.actor import Actor, current_rank, endpoint, shutdown_context, this_host
from monarch.rdma import RDMAAction, RDMABuffer, get_rdma_backend, is_ibverbs_available

TRUTH = (2.0, -1.0)
WORKERS = 2
STEPS = 60
RATE = 0.3


def numbers(*values: float) -> memoryview:
    """Memory of so many doubles, as bytes in one dimension."""
    return memoryview(bytearray(array("d", values)))


class Server(Actor):
    """Has the weights, and a place for the gradient of each worker."""

    def __init__(self) -> None:
        self.weights = numbers(0.0, 0.0)
        self.gradients = [numbers(0.0, 0.0) for _ in range(WORKERS)]
        self.handles = RDMABuffer(self.weights), [RDMABuffer(each) for each in self.gradients]

    @endpoint
    def lend(self, worker: int) -> tuple[RDMABuffer, RDMABuffer]:
        weights, gradients = self.handles
        return weights, gradients[worker]

    @endpoint
    def step(self) -> None:
        weights = self.weights.cast("d")
        for gradient in self.gradients:
            for index, slope in enumerate(gradient.cast("d")):
                weights[index] -= RATE / WORKERS * slope

    @endpoint
    def result(self) -> list[float]:
        return [round(weight, 4) for weight in self.weights.cast("d")]

    @endpoint
    def drop(self) -> None:
        self.handles[0].drop().get()


class Worker(Actor):
    """Knows points of the line, each worker other ones."""

    def __init__(self, server: Server) -> None:
        rank = current_rank().rank
        self.there, self.gradient = server.lend.call_one(rank).get()
        self.weights = numbers(0.0, 0.0)
        self.points = [(x, TRUTH[0] * x + TRUTH[1]) for x in (rank - 1.0, rank + 0.5, rank + 0.0)]

    @endpoint
    def work(self) -> float:
        """Write the gradient of the mean squared error, which is returned."""
        self.there.read_into(self.weights).get()
        slope, offset = self.weights.cast("d")
        misses = [(x, slope * x + offset - y) for x, y in self.points]
        count = len(misses)
        gradient = numbers(sum(miss * x for x, miss in misses) / count, sum(miss for _, miss in misses) / count)
        self.gradient.write_from(gradient, timeout=30).get()
        return sum(miss * miss for _, miss in misses) / count

    @endpoint
    def read_late(self) -> bool:
        try:
            self.there.read_into(self.weights).get()
        except Exception:
            return True
        return False


class Player(Actor):
    """Throws what it has to the other one, in one batch with what it reads from there."""

    def __init__(self) -> None:
        self.hand = numbers(current_rank().rank, 0.0)
        self.buffer = RDMABuffer(self.hand)

    @endpoint
    def lend(self) -> RDMABuffer:
        return self.buffer

    @endpoint
    def throw(self, other: RDMABuffer) -> list[float]:
        seen, ball = numbers(0.0, 0.0), numbers(7.0, 8.0, 9.0)
        RDMAAction().read_remote(seen, other).submit(timeout=20).get()
        RDMAAction().write_remote(other, ball[:16]).submit(timeout=20).get()
        try:
            RDMAAction().write_remote(other, ball)
        except ValueError:
            return list(seen.cast("d"))
        return []

    @endpoint
    def look(self) -> list[float]:
        return list(self.hand.cast("d"))


def main() -> None:
    procs = this_host().spawn_procs(per_host={"gpus": WORKERS})
    server = procs.slice(gpus=0).spawn("server", Server)
    workers = procs.spawn("workers", Worker, server)
    losses = []
    for _ in range(STEPS):
        losses.append(max(loss for _, loss in workers.work.call().get().items()))
        server.step.call_one().get()
    print("loss falls", losses[0] > 1, losses[-1] < 1e-3)
    print("weights", [round(weight, 1) for weight in server.result.call_one().get()])
    server.drop.call_one().get()
    print("dropped", [late for _, late in workers.read_late.call().get().items()])

    players = procs.spawn("players", Player)
    ours, theirs = (each for _, each in players.lend.call().get().items())
    print("left sees", players.slice(gpus=0).throw.call_one(theirs).get())
    print("right sees", players.slice(gpus=1).throw.call_one(ours).get())
    print("both have", [hand for _, hand in players.look.call().get().items()])
    print("bytes", ours.size(), "backend", ours.backend == get_rdma_backend(), is_ibverbs_available())
    procs.stop().get()


if __name__ == "__main__":
    main()
    shutdown_context().get()
