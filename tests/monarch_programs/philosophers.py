"""Dining philosophers: a waiter hands out the forks, both at once, so that none starves with one in the hand."""

from __future__ import annotations

import asyncio
from collections import Counter

from monarch.actor import (
    Actor,
    Future,
    concurrent_endpoint,
    context,
    current_rank,
    endpoint,
    get_or_spawn_controller,
    shutdown_context,
    this_host,
)

SEATS = 5
MEALS = 8


class Waiter(Actor):
    """Serves all at the same time: a philosopher that waits for forks keeps no other from asking."""

    def __init__(self) -> None:
        self.table = asyncio.Condition()
        self.lying = set(range(SEATS))
        self.hands = Counter[int]()  # on each fork, as the philosophers say
        self.crowd = 0
        self.largest_crowd = 0
        self.meals = Counter[int]()

    @concurrent_endpoint
    async def take_forks(self, seat: int) -> None:
        forks = self.forks_of(seat)
        async with self.table:
            await self.table.wait_for(lambda: forks <= self.lying)
            self.lying -= forks

    @concurrent_endpoint
    async def lay_forks(self, seat: int) -> None:
        async with self.table:
            self.lying |= self.forks_of(seat)
            self.table.notify_all()

    @endpoint
    async def begin_meal(self, seat: int) -> None:
        self.hands.update(self.forks_of(seat))
        doubled = [fork for fork, hands in self.hands.items() if hands > 1]
        assert not doubled, f"forks {doubled} are in two hands"
        self.crowd += 1
        self.largest_crowd = max(self.crowd, self.largest_crowd)

    @endpoint
    async def end_meal(self, seat: int) -> None:
        self.hands.subtract(self.forks_of(seat))
        self.crowd -= 1
        self.meals[seat] += 1

    @endpoint
    async def report(self) -> tuple[list[int], int, list[int]]:
        return [self.meals[seat] for seat in range(SEATS)], self.largest_crowd, sorted(self.lying)

    def forks_of(self, seat: int) -> set[int]:
        return {seat, (seat + 1) % SEATS}


class Philosopher(Actor):
    def __init__(self) -> None:
        self.seat = current_rank()["seats"]

    @endpoint
    async def dine(self, meals: int) -> str:
        waiter = await call_waiter()
        for _ in range(meals):
            await waiter.take_forks.call_one(self.seat)
            await waiter.begin_meal.call_one(self.seat)
            await waiter.end_meal.call_one(self.seat)
            await waiter.lay_forks.call_one(self.seat)
        return f"{context().actor_instance.rank} is full"


def call_waiter() -> Future[Waiter]:
    """The one waiter of the house; the first call makes it."""
    return get_or_spawn_controller("waiter", Waiter)


async def main() -> None:
    async with this_host().spawn_procs(per_host={"seats": SEATS}) as seats:
        philosophers = seats.spawn("philosophers", Philosopher)
        await philosophers.initialized
        dined = philosophers.dine.call(MEALS)
        guest = philosophers.slice(seats=2)  # is at it, and hears of nothing else before he is full
        print(await guest.dine.call_one(0))
        for place, text in await dined:
            print(place["seats"], text)
        meals, crowd, lying = await (await call_waiter()).report.call_one()
        print("meals", meals, "forks", lying)
        print("most at once", crowd if not 1 <= crowd <= SEATS // 2 else "one or two")
    await shutdown_context()


if __name__ == "__main__":
    asyncio.run(main())
