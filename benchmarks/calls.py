"""Measures calls to one worker: round trips and pipelines, from threads, loops and other actors, beside bare ZeroMQ.

    python benchmarks/calls.py [--rounds N] [--json FILE]

The base of a blocking caller is a ping-pong of blocking sockets (`bare.py`), that of a coroutine a ping-pong of pyzmq's
asyncio sockets. The base of a call between actors, async ones too, is the blocking ping-pong: two workers are ordinary
processes.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bare import BareZeroMQ
from report import Aim, Report, arguments
from rounds import TURNS, Comparison, Turn, format_spread, run_rounds, timed, timed_async

from meshbook import Actor, close_session, endpoint, this_host

CALLS = 2000 // TURNS  # of one turn
OUTSTANDING = 5000
RATE = "calls/s"


class Echo(Actor):
    """The worker's side, on a thread."""

    @endpoint
    def echo(self, value: int) -> int:
        return value

    @endpoint
    def call_other(self, other: Any, count: int) -> list[float]:
        """Call another actor `count` times, one after the other; returns the seconds of each call."""
        return list(timed(lambda: other.echo.call_one(1).get(), count)())


class AsyncEcho(Actor):
    """The worker's side, on an event loop."""

    @endpoint
    async def echo(self, value: int) -> int:
        return value

    @endpoint
    async def call_other(self, other: Any, count: int) -> list[float]:
        return await timed_async(lambda: other.echo.call_one(1), count)


def compare_round_trips(bare: BareZeroMQ, echo: Any) -> Comparison:
    return Comparison(
        "sync call",
        timed(bare.call, CALLS),
        timed(lambda: echo.call_one(1).get(), CALLS),
        ratio_aim=Aim(1.4),
        aim=Aim(100),
    )


def compare_awaited(bare: BareZeroMQ, echo: Any, runner: asyncio.Runner) -> Comparison:
    """Compare awaited calls; no other comparison may use `bare`: its socket belongs to the loop from here on."""

    async def open_on_loop() -> Any:
        return bare.on_a_loop()

    socket = runner.run(open_on_loop())
    return Comparison(
        "awaited call",
        lambda: runner.run(timed_async(lambda: bare.call_async(socket), CALLS)),
        lambda: runner.run(timed_async(lambda: echo.call_one(1), CALLS)),
        ratio_aim=Aim(1.5),
        base_name="bare zmq.asyncio",
    )


def compare_actors(kind: str, bare: BareZeroMQ, actors: Any, ratio_aim: Aim) -> Comparison:
    caller, other = actors.slice(gpus=0), actors.slice(gpus=1)
    return Comparison(
        f"actor to actor, {kind}",
        timed(bare.call, CALLS),
        lambda: caller.call_other.call_one(other, CALLS).get(),
        ratio_aim=ratio_aim,
    )


def compare_outstanding(bare: BareZeroMQ, echo: Any, runner: asyncio.Runner) -> list[Comparison]:
    """Compare calls that are all sent before the first answer is read."""

    def call_all() -> None:
        for answer in [echo.call_one(1) for _ in range(OUTSTANDING)]:
            answer.get()

    async def await_all() -> list[float]:
        start = time.perf_counter()
        for answer in [echo.call_one(1) for _ in range(OUTSTANDING)]:
            await answer
        return [time.perf_counter() - start]

    def compare(name: str, ours: Turn, aim: Aim | str, ratio_aim: Aim | str) -> Comparison:
        base = timed(lambda: bare.pipeline(OUTSTANDING))
        return Comparison(name, base, ours, RATE, per_run=OUTSTANDING, aim=aim, ratio_aim=ratio_aim)

    return [
        compare(f"{OUTSTANDING} outstanding", timed(call_all), Aim(60_000, is_least=True), Aim(0.5, is_least=True)),
        compare(f"{OUTSTANDING} outstanding, awaited", lambda: runner.run(await_all()), "", ""),
    ]


def main() -> None:
    options = arguments("Calls to one worker beside a bare ZeroMQ ping-pong.", rounds=7)
    report, bare, bare_async = Report(), BareZeroMQ(), BareZeroMQ()
    workers = this_host().spawn_procs(per_host={"gpus": 2})
    sync_actors: Any = workers.spawn("echo", Echo)
    async_actors: Any = workers.spawn("async", AsyncEcho)
    echo = sync_actors.slice(gpus=0).echo
    with asyncio.Runner() as runner:
        comparisons = [
            compare_round_trips(bare, echo),
            compare_awaited(bare_async, echo, runner),
            compare_actors("sync", bare, sync_actors, Aim(1.5)),
            compare_actors("async", bare, async_actors, Aim(1.6)),
            *compare_outstanding(bare, echo, runner),
        ]
        run_rounds(report, comparisons, options.rounds)
    workers.stop().get()
    close_session()
    bare.close()
    bare_async.close()
    report.present("calls to one worker, in turns", options, format_spread(report, comparisons))


if __name__ == "__main__":
    main()
