"""Measures the data plane by each backend, beside a copy in memory, a plain socket and other runtimes, in turns.

    python benchmarks/transfer.py [--quick] [--rounds N] [--peers PYTHON] [--json FILE]

Two workers for each backend, which is forced on them; one of them moves the data, and copies within its own memory in
the same round. "Fresh" is into pages that were never touched. A backend that this machine does not support is left out.
`--peers` names an interpreter that has torchmonarch, ray or distributed; see `peer_interpreters.py`. GB are 10^9 bytes,
MiB 2^20; bytes are counted once, but there and back for a tensor that goes to an endpoint and returns.
"""

from __future__ import annotations

import argparse
import mmap
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from peer_interpreters import NAMES, PeerInterpreter
from report import Report, json_option, percentiles

from meshbook import Actor, ActorError, RDMABuffer, close_session, endpoint, this_host
from meshbook.runtime.config import OVERRIDES

KIB, MIB = 1 << 10, 1 << 20
TIMES = {4 * KIB: 300, 64 * KIB: 200, MIB: 40, 16 * MIB: 8, 64 * MIB: 4, 128 * MIB: 2, 512 * MIB: 1}
QUICK = (4 * KIB, MIB, 64 * MIB)
RECEIVERS = 4  # of a broadcast
ECHOED = (16 * MIB, 64 * MIB, 128 * MIB)
MOST_OF_PEERS = 128 * MIB  # the limit for other runtimes: half a GiB takes some of them seconds
OTHER_PROCESS = ("process memory", "host agent", "message", "nixl")  # the backends that are forced, where supported
Works = dict[str, Callable[[], object]]


def title(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def works_with(buffer: RDMABuffer, size: int) -> Works:
    """Return the transfers between a process's own memory and another's buffer: in warm memory unless named fresh."""
    mine, other = np.ones(size, np.uint8), np.ones(size, np.uint8)
    own = RDMABuffer(other)

    def fresh() -> Any:
        return np.frombuffer(mmap.mmap(-1, size), np.uint8)

    return {
        "memcpy": lambda: np.copyto(mine, other),
        "memcpy, fresh": lambda: np.copyto(fresh(), other),
        "same process": lambda: own.read_into(mine).get(),
        "read": lambda: buffer.read_into(mine).get(),
        "read, fresh": lambda: buffer.read_into(fresh()).get(),
        "write": lambda: buffer.write_from(mine).get(),
        "drop": lambda: own.drop().get(),
    }


def measure(buffer: RDMABuffer, size: int, wanted: Iterable[str]) -> dict[str, float]:
    """Return the seconds of each, the median of as many times as that size has."""
    works = works_with(buffer, size)
    found = {}
    for name in wanted:
        works[name]()  # warm-up
        found[name] = percentiles(works[name], TIMES[size])[0]
    works["drop"]()
    return found


class Mover(Actor):
    """One side: holds memory, or moves it; by the data plane and by a plain socket."""

    @endpoint
    def hold(self, size: int) -> RDMABuffer:
        self.memory = np.ones(size, np.uint8)
        self.buffer = RDMABuffer(self.memory)
        return self.buffer

    @endpoint
    def drop(self) -> None:
        self.buffer.drop().get()
        del self.memory, self.buffer

    @endpoint
    def read(self, buffer: RDMABuffer) -> None:
        buffer.read_into(bytearray(buffer.size())).get()

    @endpoint
    def measure(self, buffer: RDMABuffer, size: int, wanted: list[str]) -> dict[str, float]:
        return measure(buffer, size, wanted)

    @endpoint
    def listen(self) -> int:
        """Listen on a port, and send the held memory for each byte received; returns the port."""
        door = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            link, _ = door.accept()
            while link.recv(1):
                link.sendall(self.memory)

        threading.Thread(target=serve, daemon=True).start()
        return int(door.getsockname()[1])

    @endpoint
    def connect(self, port: int) -> None:
        self.link = socket.create_connection(("127.0.0.1", port))

    @endpoint
    def receive(self, size: int) -> float:
        """Return the seconds for so many bytes, by a plain socket into warm memory."""
        mine = np.ones(size, np.uint8)

        def once() -> None:
            self.link.sendall(b"x")
            left = memoryview(mine)
            while left:
                left = left[self.link.recv_into(left) :]

        once()
        return percentiles(once, TIMES[size])[0]

    @endpoint
    def echo(self, value: Any) -> Any:
        return value


class Pair:
    """Two workers that reach each other by one backend only."""

    def __init__(self, way: str) -> None:
        self.way = way
        with OVERRIDES.during({"rdma_backends": f"{way},same process"}):
            self.procs = this_host().spawn_procs(per_host={"gpus": 2})
        transfer_peers = self.procs.spawn("transfer_peers", Mover)
        self.owner: Any = transfer_peers.slice(gpus=0)
        self.reader: Any = transfer_peers.slice(gpus=1)
        self.reader.connect.call_one(self.owner.listen.call_one().get()).get()

    def is_supported(self) -> bool:
        """Return whether this machine supports the backend; otherwise print the reason."""
        buffer = self.owner.hold.call_one(KIB).get()
        try:
            self.reader.read.call_one(buffer).get()
        except ActorError as error:
            (why,) = [line.strip() for line in str(error.exception).splitlines() if line.strip().startswith(self.way)]
            print(f"without {why}", file=sys.stderr)
            self.procs.stop().get()
            return False
        self.owner.drop.call_one().get()
        return True

    def measure(self, report: Report, size: int) -> None:
        """Measure from worker to worker; in the first pair also from the controller to a worker."""
        buffer = self.owner.hold.call_one(size).get()
        wanted = ["memcpy", "read", "write"]
        if self.way == "process memory":
            wanted += ["same process"] + (["memcpy, fresh", "read, fresh"] if size >= MIB else [])
        found = self.reader.measure.call_one(buffer, size, wanted).get()
        put(report, size, self.way, found)
        if self.way == "process memory":
            put(report, size, "controller, process memory", measure(buffer, size, ["memcpy", "read", "write"]))
        if self.way == "host agent":
            plain = self.reader.receive.call_one(size).get()
            put_time(report, f"{title(size)} plain socket", size, plain)
            for what in ("read", "write") if size >= MIB else ():
                put_ratio(report, f"{title(size)} {what}, host agent", plain / found[what], "x of a socket")
        self.owner.drop.call_one().get()


def put(report: Report, size: int, way: str, seconds: dict[str, float]) -> None:
    """Report the times of one backend, and their ratio to a copy in the same process."""
    for what, taken in seconds.items():
        name = f"{title(size)} {what}, {way}" if what in ("read", "write") else f"{title(size)} {what}"
        if "memcpy" not in what or way == "process memory":
            put_time(report, name, size, taken)
        if "memcpy" not in what and size >= MIB:
            base = seconds["memcpy, fresh" if "fresh" in what else "memcpy"]
            put_ratio(report, name, base / taken, "x of memcpy")


def put_time(report: Report, name: str, size: int, seconds: float, times: int = 1) -> None:
    if size < MIB:
        report.put(name, seconds * 1e6, "us")
    else:
        report.put(name, times * size / seconds / 1e9, "GB/s")


def put_ratio(report: Report, name: str, ratio: float, unit: str) -> None:
    report.put(f"{name}: {unit}", ratio, "x")


def measure_echo(report: Report, echo: Any, size: int) -> None:
    """Measure a tensor to an endpoint and back."""
    tensor = torch.ones(size, dtype=torch.uint8)
    for _ in range(3):
        echo.call_one(tensor).get()  # creates the segments and pages that a program reuses in later calls
    taken = percentiles(lambda: echo.call_one(tensor).get(), TIMES[size] + 1)[0]
    name, mine, other = f"{title(size)} to an endpoint and back", np.ones(size, np.uint8), np.ones(size, np.uint8)
    put_time(report, name, size, taken, times=2)
    copied = percentiles(lambda: np.copyto(mine, other), TIMES[size] + 1)[0]
    put_ratio(report, name, 2 * copied / taken, "x of memcpy")


def measure_broadcast(report: Report, procs: Any, size: int) -> None:
    """Measure a buffer of the controller to each of several ranks, whose copies exist from the time before."""
    buffer = RDMABuffer(np.ones(size, np.uint8))
    buffer.broadcast_to(procs).get()
    taken = percentiles(lambda: buffer.broadcast_to(procs).get(), TIMES[size])[0]
    put_time(report, f"{title(size)} broadcast to {len(procs)} ranks, all together", size, taken, times=len(procs))
    buffer.drop().get()


def measure_peer(report: Report, peer: PeerInterpreter, size: int) -> None:
    """Measure another runtime in the same way, and the ratio of ours to it."""
    figures = (("read", "read, process memory", 1), ("echo", "to an endpoint and back", 2))
    for what, ours, times in figures:
        if (what == "echo" and size not in ECHOED) or (seconds := peer.ask(what, size, TIMES[size])) is None:
            continue
        name = f"{title(size)} {ours.partition(',')[0]}, {peer.name}"
        put_time(report, name, size, seconds, times)
        mine, theirs = report.latest(f"{title(size)} {ours}"), report.latest(name)
        put_ratio(report, f"{title(size)} {ours}", theirs / mine if size < MIB else mine / theirs, f"x of {peer.name}")


AIMS = (  # description, figure, bound, whether the bound is a minimum
    ("same host, a read, of memcpy", "64 MiB read, process memory: x of memcpy", 0.6, True),
    ("same host, a write, of memcpy", "64 MiB write, process memory: x of memcpy", 0.6, True),
    ("host agent over TCP, a read, of a plain socket", "64 MiB read, host agent: x of a socket", 0.8, True),
    ("host agent over TCP, a write, of a plain socket", "64 MiB write, host agent: x of a socket", 0.8, True),
    ("a tensor to an endpoint and back, both counted, GB/s", "64 MiB to an endpoint and back", 4.0, True),
    ("4 KiB read from Python, us", "4 KiB read, process memory", 60.0, False),
)


def format_aims(report: Report) -> str:
    """Return a line per aim: whether it is met."""
    lines = []
    for what, figure, bound, is_least in AIMS:
        median = report.median(figure)
        if median is None:
            word, found = "not measured", ""
        else:
            word = "holds" if (median >= bound) == is_least else "DOES NOT HOLD"
            found = f"{median:.3g}"
        lines.append(f"  {what:<54} {'at least' if is_least else 'under':<8} {bound:>4g}   {found:>6}   {word}")
    return "\n".join(["aims, by the median of 64 MiB and 4 KiB:", *lines])


def main() -> None:
    parser = json_option(argparse.ArgumentParser(description="Bulk data between processes, by each way."))
    parser.add_argument("--quick", action="store_true", help="three sizes and two rounds: half a minute")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--peers", metavar="PYTHON", help="an interpreter that has other runtimes")
    options = parser.parse_args()
    options.rounds = options.rounds or (2 if options.quick else 3)
    report, sizes = Report(), QUICK if options.quick else tuple(TIMES)
    procs = this_host().spawn_procs(per_host={"gpus": RECEIVERS})
    echo = procs.slice(gpus=0).spawn("echo", Mover).echo
    pairs = [pair for pair in map(Pair, OTHER_PROCESS) if pair.is_supported()]
    peers = [PeerInterpreter(options.peers, name) for name in NAMES] if options.peers else []
    for _ in range(options.rounds):
        for size in sizes:
            for pair in pairs:
                pair.measure(report, size)
            if size in ECHOED:
                measure_echo(report, echo, size)
                measure_broadcast(report, procs, size)
            for peer in peers if size <= MOST_OF_PEERS else ():
                measure_peer(report, peer, size)
    for peer in peers:
        peer.close()
    for each in (procs, *(pair.procs for pair in pairs)):
        each.stop().get()
    close_session()
    report.present("bulk data between processes, interleaved", options, format_aims(report))


if __name__ == "__main__":
    main()
