"""Foremen with workers of their own, who respawn them when one dies: one by its process's end, one by an exception.

With the argument `unhandled` a foreman leaves that to those above him. Nobody is there, so the program ends by it.
"""

from __future__ import annotations

import asyncio
import os
import sys

import monarch.actor
from monarch._rust_bindings.monarch_hyperactor.supervision import SupervisionError
from monarch.actor import Actor, MeshFailure, current_rank, endpoint, shutdown_context, this_host

CHUNKS = [range(start, start + 4) for start in (0, 4, 8)]
UNLUCKY = 5


class Worker(Actor):
    """Adds up the squares of every second number; `doom` is how it ends at an unlucky one."""

    def __init__(self, doom: str) -> None:
        self.doom = doom
        self.total = 0

    @endpoint
    async def add_squares(self, numbers: range) -> None:
        mine = numbers[current_rank()["workers"] :: current_rank().size("workers")]
        if UNLUCKY in mine and self.doom == "exit":
            os._exit(3)
        if UNLUCKY in mine and self.doom == "raise":
            raise ValueError(f"{UNLUCKY} is unlucky")
        self.total += sum(number * number for number in mine)

    @endpoint
    async def take_total(self) -> int:
        total, self.total = self.total, 0
        return total


class Foreman(Actor):
    """Has the work done, and done again where a worker died at it."""

    def __init__(self, dooms: list[str], heeds: bool) -> None:
        self.doom = dooms[current_rank()["foremen"]]
        self.heeds = heeds
        self.crews = 0
        self.reports: list[str] = []
        self.told = asyncio.Event()
        self.hire(self.doom)

    def hire(self, doom: str) -> None:
        self.crews += 1
        self.procs = this_host().spawn_procs(per_host={"workers": 2}, name=f"crew{self.crews}")
        self.workers = self.procs.spawn("workers", Worker, doom)

    async def __supervise__(self, failure: MeshFailure) -> bool:
        self.reports.append(failure.report())
        self.told.set()
        return self.heeds

    @endpoint
    async def sum_squares(self, chunks: list[range]) -> int:
        return sum([await self.do(chunk) for chunk in chunks])

    async def do(self, chunk: range) -> int:
        while True:
            self.workers.add_squares.broadcast(chunk)
            try:
                return sum((await self.workers.take_total.call()).values())
            except SupervisionError:
                await self.told.wait()
                await self.procs.stop()
                self.hire(doom="")

    @endpoint
    async def look_back(self) -> tuple[int, bool]:
        cause = {"exit": "code 3", "raise": f"{UNLUCKY} is unlucky"}[self.doom]
        return self.crews, any(cause in report for report in self.reports)

    @endpoint
    async def work_without_looking(self, numbers: range) -> None:
        self.workers.add_squares.broadcast(numbers)


async def main() -> None:
    async with this_host().spawn_procs(per_host={"foremen": 2}) as office:
        foremen = office.spawn("foremen", Foreman, ["exit", "raise"], True)
        totals = await foremen.sum_squares.call(CHUNKS)
        print("totals", *totals.values(), "of", sum(number**2 for chunk in CHUNKS for number in chunk))
        for place, (crews, is_told) in await foremen.look_back.call():
            print(f"foreman {place['foremen']} had {crews} crews, and was told why: {is_told}")

    heard: asyncio.Queue[MeshFailure] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    monarch.actor.unhandled_fault_hook = lambda failure: loop.call_soon_threadsafe(heard.put_nowait, failure)
    careless = await leave_it_to_the_program()
    failure = await heard.get()
    print("unhandled", isinstance(failure, MeshFailure), f"{UNLUCKY} is unlucky" in failure.report())
    try:
        await careless.look_back.call()
    except SupervisionError as error:
        print("careless", "all its descendants have failed" in str(error))
    await shutdown_context()


async def leave_it_to_the_program() -> Foreman:
    office = this_host().spawn_procs(per_host={"foremen": 1})
    careless = office.spawn("careless", Foreman, ["raise"], False)
    careless.work_without_looking.broadcast(CHUNKS[1])
    return careless


async def main_unhandled() -> None:
    await leave_it_to_the_program()
    print("waiting", flush=True)
    while True:
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main_unhandled() if sys.argv[1:] == ["unhandled"] else main())
