"""What a user writes, and what a type checker must see in it. Never run: tests/typed/test_typed.py reads the comments.

`reveal_type(x)  # -> T` says that x is a T (module names left out), `# error: CODE` that the line is wrong.
"""

from __future__ import annotations

import operator
from typing import Literal, reveal_type

from meshbook import (
    Accumulator,
    Actor,
    Channel,
    HostMesh,
    MeshFailure,
    Port,
    ProcMesh,
    Restarts,
    ValueMesh,
    as_endpoint,
    concurrent_endpoint,
    current_actor_name,
    endpoint,
    events,
    returns_future,
    send,
    this_host,
)
from meshbook.testing import chaos


class Trainer(Actor):
    def __init__(self, rate: float) -> None:
        self.rate = rate

    @endpoint
    def step(self, x: int, name: str = "") -> int:
        reveal_type(self.rate)  # -> float
        self.logger.info("step %d", x)
        return x

    @endpoint
    async def fetch(self, x: int) -> str:
        return str(x)

    @endpoint(propagate="inspect", instrument=False)
    def shaped(self) -> bool:
        return True

    @endpoint(propagate=lambda x: x)
    async def shaped_later(self) -> bool:
        return True

    @endpoint(explicit_response_port=True)
    def answer(self, port: Port[float], x: int) -> None:
        port.send(1.5)
        port.send("text")  # error: arg-type

    @endpoint(explicit_response_port=True)
    async def answer_later(self, port: Port[float]) -> None: ...

    @concurrent_endpoint
    async def overlap(self, *, key: bytes) -> bytes:
        return key

    @concurrent_endpoint(instrument=True)
    async def overlap_too(self, key: bytes) -> bytes:
        return key

    @concurrent_endpoint(explicit_response_port=True)
    async def overlap_and_answer(self, port: Port[list[int]], key: bytes) -> None: ...

    def plain(self, z: int) -> list[int]:
        return [z]

    async def plain_later(self, z: int) -> list[int]:
        return [z]

    def plain_answer(self, port: Port[int], z: str) -> None: ...


@returns_future
async def total(x: int, *, scale: float = 1.0) -> float:
    return x * scale


def decide(failure: MeshFailure) -> Literal["raise", "respawn"]:
    return "respawn" if len(failure.crashed_ranks) < 3 else "raise"


def spawns(procs: ProcMesh) -> Trainer:
    reveal_type(this_host())  # -> HostMesh
    reveal_type(this_host().spawn_procs(per_host={"gpus": 2}))  # -> ProcMesh
    reveal_type(procs.spawn("trainer", Trainer, 0.1))  # -> Trainer
    reveal_type(procs.heal())  # -> Future[list[int]]
    reveal_type(procs.init_process_group("gloo", timeout=60))  # -> Future[None]
    reveal_type(procs.abort_process_groups())  # -> Future[dict[int, tuple[str, ...]]]
    reveal_type(procs.resize(gpus=6))  # -> ProcMesh
    reveal_type(procs.all_of(procs.spawn("trainer", Trainer, 0.1)))  # -> Trainer
    procs.resize(gpus="6")  # error: arg-type
    procs.all_of(3)  # error: type-var
    reveal_type(procs.spares())  # -> Future[int]
    reveal_type(procs.with_policy("respawn", Restarts(most=1)))  # -> ProcMesh
    this_host().spawn_procs(per_host={"gpus": 2}, spares=1, on_failure=decide, restarts=Restarts(within=5))
    this_host().spawn_procs(on_failure="restart")  # error: arg-type
    procs.with_policy(lambda failure: True)  # error: arg-type
    reveal_type([event.ranks for event in events()])  # -> list[tuple[int, ...]]
    procs.spawn("text", str)  # error: type-var
    Trainer("fast")  # error: arg-type
    return procs.spawn("trainer", Trainer, 0.1)


def verbs(mesh: Trainer) -> None:
    reveal_type(mesh.step.call(1))  # -> Future[ValueMesh[int]]
    reveal_type(mesh.step.call_one(1, name="a"))  # -> Future[int]
    reveal_type(mesh.step.choose(1, "a"))  # -> Future[int]
    reveal_type(mesh.step.stream(1))  # -> Iterator[Future[int]]
    reveal_type(mesh.step.call_each(1))  # -> Sequence[Future[int]]
    reveal_type(mesh.step.broadcast)  # -> def (x: int, name: str =)
    reveal_type(mesh.step.rref(1))  # -> int
    reveal_type(mesh.fetch.call(1))  # -> Future[ValueMesh[str]]
    reveal_type(mesh.fetch.call_one(1))  # -> Future[str]
    reveal_type(mesh.shaped.call_one())  # -> Future[bool]
    reveal_type(mesh.shaped_later.call_one())  # -> Future[bool]
    reveal_type(mesh.overlap.call(key=b""))  # -> Future[ValueMesh[bytes]]
    reveal_type(mesh.overlap_too.call_one(b""))  # -> Future[bytes]
    reveal_type(Accumulator(mesh.step, 0.0, operator.add).accumulate(1))  # -> Future[float]
    reveal_type(Accumulator(mesh.step, "", lambda text, x: text + str(x)).accumulate(1))  # -> Future[str]


def wrong_arguments(mesh: Trainer) -> None:
    mesh.step.call("x")  # error: arg-type
    mesh.step.call()  # error: call-arg
    mesh.step.call_one(1, 2)  # error: arg-type
    mesh.step.choose(1, wrong=3)  # error: call-arg
    mesh.step.stream(None)  # error: arg-type
    mesh.step.broadcast([1])  # error: arg-type
    mesh.fetch.call("x")  # error: arg-type
    mesh.overlap.call(b"")  # error: call-arg
    Accumulator(mesh.step, 0, operator.add).accumulate("x")  # error: arg-type
    Accumulator(mesh.step, 0, len).accumulate(1)  # error: arg-type
    mesh.missing.call()  # error: attr-defined


def ports(mesh: Trainer) -> None:
    reveal_type(mesh.answer.call(1))  # -> Future[ValueMesh[float]]
    reveal_type(mesh.answer_later.call_one())  # -> Future[float]
    reveal_type(mesh.overlap_and_answer.call_one(b""))  # -> Future[list[int]]
    port, receiver = Channel[int].open()
    reveal_type(port)  # -> Port[int]
    reveal_type(receiver)  # -> PortReceiver[int]
    reveal_type(receiver.recv())  # -> Future[int]
    reveal_type(receiver.ranked().recv())  # -> Future[tuple[int, int]]
    ranked_port, ranked = Channel[str].open_ranked(once=True)
    reveal_type(ranked_port)  # -> Port[str]
    reveal_type(ranked.recv().get())  # -> tuple[int, str]
    mesh.answer.call(port, 1)  # error: call-arg
    mesh.answer.call("x")  # error: arg-type
    port.send("text")  # error: arg-type


def sends(mesh: Trainer, numbers: Port[int], texts: Port[str]) -> None:
    send(mesh.step, (1,), {}, numbers)
    send(mesh.fetch, [1], {"x": 1}, texts, "choose")
    send(mesh.step, (1,), {}, selection="all")
    send(mesh.step, (1,), {}, texts)  # error: misc
    send(mesh.step, (1,), {}, selection="some")  # error: arg-type
    send(mesh.plain, (1,), {})  # error: arg-type


def undecorated(mesh: Trainer) -> None:
    reveal_type(as_endpoint(mesh.plain).call(1))  # -> Future[ValueMesh[list[int]]]
    reveal_type(as_endpoint(mesh.plain_later, propagate="inspect").call_one(1))  # -> Future[list[int]]
    reveal_type(as_endpoint(mesh.plain_answer, explicit_response_port=True).call_one(""))  # -> Future[int]
    as_endpoint(mesh.plain).call("x")  # error: arg-type
    mesh.plain.call(1)  # error: attr-defined


def meshes(mesh: Trainer) -> None:
    reveal_type(mesh.slice(gpus=0))  # -> Trainer
    reveal_type(mesh.slice(gpus=0).step.call(1))  # -> Future[ValueMesh[int]]
    reveal_type(mesh.flatten("rank").rename(rank="worker"))  # -> Trainer
    reveal_type(mesh.split(gpus=("row", "column"), row=2))  # -> Trainer
    reveal_type(mesh.stop())  # -> Future[None]
    reveal_type(mesh.stop("done").get())  # -> None
    reveal_type(mesh.reload())  # -> Future[None]
    reveal_type(mesh.reload(Trainer).get())  # -> None
    mesh.reload(int)  # error: arg-type
    reveal_type(mesh.initialized)  # -> Future[None]
    reveal_type(mesh.size())  # -> int
    reveal_type(mesh.size("gpus"))  # -> int
    reveal_type(mesh.sizes)  # -> dict[str, int]
    reveal_type(mesh.extent)  # -> Extent
    reveal_type(len(mesh))  # -> int
    mesh.slice(gpus="0")  # error: arg-type


async def values(mesh: Trainer) -> None:
    reveal_type(await mesh)  # -> Trainer
    found = await mesh.step.call(1)
    reveal_type(found)  # -> ValueMesh[int]
    reveal_type(found.item(gpus=1))  # -> int
    reveal_type(found.slice(gpus=slice(1, 3)))  # -> ValueMesh[int]
    reveal_type(dict(found.items()))  # -> dict[Point, int]
    reveal_type(list(found.values()))  # -> list[int]
    reveal_type(ValueMesh[str].from_indexed(found.extent, [(0, "a")]))  # -> ValueMesh[str]
    ValueMesh[str].from_indexed(found.extent, [(0, 1)])  # error: list-item
    for point, value in found:
        reveal_type(point)  # -> Point
        reveal_type(value)  # -> int


async def futures(hosts: HostMesh) -> None:
    reveal_type(total)  # -> def (x: int, *, scale: float =) -> Future[float]
    reveal_type(total(1))  # -> Future[float]
    reveal_type(total(1, scale=2).get(1.0))  # -> float
    reveal_type(await total(1))  # -> float
    reveal_type(total(1).exception())  # -> BaseException | None
    total("x")  # error: arg-type
    total(1, wrong=2)  # error: call-arg
    reveal_type(current_actor_name())  # -> str


@returns_future  # error: arg-type
def not_async(x: int) -> int:
    return x


class Wrong(Actor):
    @concurrent_endpoint  # error: arg-type
    def not_async(self) -> int:
        return 1

    @endpoint(explicit_response_port=True)  # error: arg-type
    def without_port(self, x: int) -> None: ...

    @endpoint(propagate="other")  # error: call-overload
    def unknown_rule(self) -> None: ...


def break_things(procs: ProcMesh) -> None:
    with chaos(procs, kill=0.5, drop=1, only=[1, 2], seed=7) as report:
        reveal_type(report)  # -> ChaosReport
    reveal_type(report.counts())  # -> dict[str, int]
    chaos(procs, explode=1)  # error: call-arg


def score(path: str, weight: float = 1.0) -> float:
    return len(path) * weight


def maps(procs: ProcMesh) -> None:
    result = procs.map(score, ["a", "b"], ordered=False, chunksize=2)
    reveal_type(result)  # -> MapResult[float]
    reveal_type(result.get())  # -> list[float]
    reveal_type(result.futures[0])  # -> Future[float]
    reveal_type(next(iter(result)))  # -> float
    procs.map(3, ["a"])  # error: arg-type
    procs.map(score, ["a"], chunksize="large")  # error: arg-type
