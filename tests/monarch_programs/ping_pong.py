"""Ping-pong between two actor meshes on two process meshes, rank against rank; each holds a reference to the other.

The ball is a message whose answer nobody waits for, so that no player waits for the one who waits for it. Its last
hitter sends it to the referee, by a port that travels along. Written with `await proc_mesh(...)`, as programs were
before there was `this_host()`.
"""

from __future__ import annotations

import asyncio

from monarch.actor import Actor, Channel, Port, current_rank, current_size, endpoint, proc_mesh

HITS = 7
Ball = list[str]


class Player(Actor):
    """Hits the ball back to the player of its own rank on the other side, until it has been hit often enough."""

    def __init__(self, side: str) -> None:
        self.gpu = current_rank()["gpus"]
        self.name = f"{side}-{self.gpu}"
        self.hits = 0

    @endpoint
    async def meet(self, others: Player) -> str:
        self.opponent = others.slice(gpus=self.gpu)
        return f"{self.name} of {current_size()['gpus']} meets {await self.opponent.say_name.call_one()}"

    @endpoint
    async def say_name(self) -> str:
        return self.name

    @endpoint
    async def hit(self, ball: Ball, referee: Port[tuple[int, Ball]]) -> None:
        self.hits += 1
        ball.append(self.name)
        if len(ball) == HITS:
            referee.send((self.gpu, ball))
        else:
            self.opponent.hit.broadcast(ball, referee)

    @endpoint
    async def count_hits(self) -> int:
        return self.hits


async def main() -> None:
    left = await proc_mesh(gpus=2)
    right = await proc_mesh(gpus=2)
    ping = await left.spawn("ping", Player, "ping")
    pong = await right.spawn("pong", Player, "pong")
    # One after the other: players that ask each other at the same time would wait forever.
    for _, meeting in [*await ping.meet.call(pong), *await pong.meet.call(ping)]:
        print(meeting)

    port, referee = Channel[tuple[int, Ball]].open()
    ping.hit.broadcast([], port)
    balls = [await referee.recv(), await referee.recv()]
    for gpu, ball in sorted(balls):
        print(f"ball {gpu}: {' '.join(ball)}")

    print("hits", *(await ping.count_hits.call()).values(), *(await pong.count_hits.call()).values())
    await left.stop()
    await right.stop()


if __name__ == "__main__":
    asyncio.run(main())
