"""What a call to one worker costs: round trip and pipelined, from threads, loops and other actors, beside bare ZeroMQ.

    python benchmarks/calls.py [--rounds N] [--json FILE]

The bare limit (`bare.py`) of an async caller is a ping-pong by pyzmq's own asyncio sockets, and that of an actor which
calls another one is the ping-pong of any two processes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from bare import Bare
from report import Report, arguments, percentiles, seconds_of, spread

from meshbook import Actor, close_session, endpoint, this_host

CALLS = 2000  # of one percentile
OUTSTANDING = 5000
ROUND_TRIP = "at most 2; 1.5"


class Echo(Actor):
    """The worker's side, on a thread."""

    @endpoint
    def echo(self, value: int) -> int:
        return value

    @endpoint
    def call_other(self, other: Any, times: int) -> list[float]:
        """Call another actor so often, one after the other: the seconds of each."""
        taken = []
        for _ in range(times):
            start = time.perf_counter()
            other.echo.call_one(1).get()
            taken.append(time.perf_counter() - start)
        return taken


class AsyncEcho(Actor):
    """The same on an event loop."""

    @endpoint
    async def echo(self, value: int) -> int:
        return value

    @endpoint
    async def call_other(self, other: Any, times: int) -> list[float]:
        taken = []
        for _ in range(times):
            start = time.perf_counter()
            await other.echo.call_one(1)
            taken.append(time.perf_counter() - start)
        return taken


async def percentiles_async(work: Callable[[], Awaitable[object]], times: int) -> tuple[float, float]:
    """As `percentiles`, of what is awaited."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - start)
    return spread(taken)


def measure_sync(report: Report, bare: Bare, echo: Any) -> None:
    """A caller that waits by `.get()`."""
    limit, limit_slow = percentiles(bare.call, CALLS)
    middle, slow = percentiles(lambda: echo.call_one(1).get(), CALLS)
    report.put("round trip, bare zmq, p50", limit * 1e6, "us")
    report.put("round trip, call_one, p50", middle * 1e6, "us")
    report.put("round trip, ratio of p50", middle / limit, "x bare", ROUND_TRIP)
    report.put("round trip, bare zmq, p99", limit_slow * 1e6, "us")
    report.put("round trip, call_one, p99", slow * 1e6, "us")


async def measure_async(report: Report, bare: Bare, echo: Any) -> None:
    """A caller that awaits."""
    socket = bare.on_a_loop()
    limit, _ = await percentiles_async(lambda: bare.call_async(socket), CALLS)
    middle, slow = await percentiles_async(lambda: echo.call_one(1), CALLS)
    report.put("awaited, bare zmq.asyncio, p50", limit * 1e6, "us")
    report.put("awaited, call_one, p50", middle * 1e6, "us")
    report.put("awaited, ratio of p50", middle / limit, "x bare", ROUND_TRIP)
    report.put("awaited, call_one, p99", slow * 1e6, "us")


def measure_pipelined(report: Report, bare: Bare, echo: Any) -> None:
    """All calls are sent before the first answer is read."""

    def pipeline() -> None:
        for answer in [echo.call_one(1) for _ in range(OUTSTANDING)]:
            answer.get()

    async def pipeline_async() -> float:
        start = time.perf_counter()
        for answer in [echo.call_one(1) for _ in range(OUTSTANDING)]:
            await answer
        return time.perf_counter() - start

    limit = OUTSTANDING / seconds_of(lambda: bare.pipeline(OUTSTANDING))
    middle = OUTSTANDING / seconds_of(pipeline)
    awaited = OUTSTANDING / asyncio.run(pipeline_async())
    report.put(f"{OUTSTANDING} outstanding, bare zmq", limit, "calls/s")
    report.put(f"{OUTSTANDING} outstanding, call_one", middle, "calls/s", "at least 20,000; 50,000")
    report.put(f"{OUTSTANDING} outstanding, ratio", middle / limit, "x bare")
    report.put(f"{OUTSTANDING} outstanding, awaited", awaited, "calls/s")


def measure_actors(report: Report, bare: Bare, kind: str, one: Any, other: Any) -> None:
    """An actor that calls one of another process."""
    limit, _ = percentiles(bare.call, CALLS)
    middle, slow = spread(one.call_other.call_one(other, CALLS).get())
    report.put(f"actor to actor, {kind}, bare zmq, p50", limit * 1e6, "us")
    report.put(f"actor to actor, {kind}, p50", middle * 1e6, "us")
    report.put(f"actor to actor, {kind}, ratio of p50", middle / limit, "x bare", "1.6")
    report.put(f"actor to actor, {kind}, p99", slow * 1e6, "us")


def main() -> None:
    options = arguments("Calls beside a bare ZeroMQ ping-pong.", rounds=7)
    report, bare = Report(), Bare()
    workers = this_host().spawn_procs(per_host={"gpus": 2})
    pairs: dict[str, Any] = {"sync": workers.spawn("echo", Echo), "async": workers.spawn("async", AsyncEcho)}
    echo = pairs["sync"].slice(gpus=0).echo
    for work in (lambda: echo.call_one(1).get(), bare.call):
        percentiles(work, CALLS // 4)  # warm
    for _ in range(options.rounds):
        measure_sync(report, bare, echo)
        asyncio.run(measure_async(report, bare, echo))
        measure_pipelined(report, bare, echo)
        for kind, pair in pairs.items():
            measure_actors(report, bare, kind, pair.slice(gpus=0), pair.slice(gpus=1))
    workers.stop().get()
    close_session()
    bare.close()
    report.present("calls to one worker, interleaved", options)


if __name__ == "__main__":
    main()
