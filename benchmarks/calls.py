"""What a call costs: round trip and pipelined, beside a bare ZeroMQ ping-pong in the same run.

    python benchmarks/calls.py [--rounds N] [--json FILE]

The bare limit is what any runtime over pyzmq pays: two processes, blocking sockets over ipc, a pickled (name, args)
there and a pickled value back, with no futures, no routing, no supervision and no other thread.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile

import zmq
from report import Report, arguments, percentiles, seconds_of

from meshbook import Actor, close_session, endpoint, this_host

CALLS = 2000  # of one percentile
OUTSTANDING = 5000


class Echo(Actor):
    """The worker's side."""

    @endpoint
    def echo(self, value: int) -> int:
        return value


class Bare:
    """The limit: a ROUTER here and a DEALER in a process of its own."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bare")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set_hwm(0)
        url = f"ipc://{self._folder.name}/s"
        self._socket.bind(url)
        self._process = subprocess.Popen([sys.executable, __file__, "--serve", url])
        self._peer = self._socket.recv_multipart()[0]

    def call(self) -> None:
        self._send()
        self._receive()

    def pipeline(self) -> None:
        for _ in range(OUTSTANDING):
            self._send()
        for _ in range(OUTSTANDING):
            self._receive()

    def _send(self) -> None:
        self._socket.send_multipart([self._peer, pickle.dumps(("echo", (1,)), 5)])

    def _receive(self) -> None:
        self._socket.recv()
        pickle.loads(self._socket.recv())

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._context.destroy(0)
        self._folder.cleanup()


def serve(url: str) -> None:
    """The bare limit's other process; it is killed at the end."""
    socket = zmq.Context().socket(zmq.DEALER)
    socket.set_hwm(0)
    socket.connect(url)
    socket.send(b"ready")
    while True:
        _, (value,) = pickle.loads(socket.recv())
        socket.send(pickle.dumps(value, 5))


def measure(report: Report, rounds: int) -> None:
    bare = Bare()
    workers = this_host().spawn_procs(per_host={"gpus": 1})
    echo = workers.spawn("echo", Echo).echo

    def call() -> None:
        echo.call_one(1).get()

    def pipeline() -> None:
        for answer in [echo.call_one(1) for _ in range(OUTSTANDING)]:
            answer.get()

    for work in (call, bare.call):
        percentiles(work, CALLS // 4)  # warm
    for _ in range(rounds):
        limit, limit_slow = percentiles(bare.call, CALLS)
        middle, slow = percentiles(call, CALLS)
        report.put("round trip, bare zmq, p50", limit * 1e6, "us")
        report.put("round trip, call_one, p50", middle * 1e6, "us")
        report.put("round trip, ratio of p50", middle / limit, "x bare", "at most 2; 1.5")
        report.put("round trip, bare zmq, p99", limit_slow * 1e6, "us")
        report.put("round trip, call_one, p99", slow * 1e6, "us")
        limit, middle = (OUTSTANDING / seconds_of(work) for work in (bare.pipeline, pipeline))
        report.put(f"{OUTSTANDING} outstanding, bare zmq", limit, "calls/s")
        report.put(f"{OUTSTANDING} outstanding, call_one", middle, "calls/s", "at least 20,000; 50,000")
        report.put(f"{OUTSTANDING} outstanding, ratio", middle / limit, "x bare")
    workers.stop().get()
    close_session()
    bare.close()


def main() -> None:
    options = arguments("Calls beside a bare ZeroMQ ping-pong.", rounds=7)
    report = Report()
    measure(report, options.rounds)
    report.present("calls to one worker, interleaved", options)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main()
