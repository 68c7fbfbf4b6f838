"""Profiles of workers from outside, by py-spy, which reads their memory and neither stops nor enters them.

One py-spy process for each worker, started by the agent of its host. It ends on request or when its worker ends, and so
with the agent, whose workers end with it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from typing import BinaryIO, cast

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.geometry import Extent
from meshbook.runtime.hosts.observer import find_spy
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.node.call_table import Target

PROFILER = "profiler"  # the actor of every host agent
MOST_SECONDS = 3600  # after which py-spy ends by itself
BEGINS_WITHIN = 5.0  # seconds until the first sample is taken; it takes 0.3
ENDS_WITHIN = 10.0
_BEGUN = b"Sampling process"


@dataclass
class _ProfilerProcess:
    """A py-spy process that profiles another process."""

    process: subprocess.Popen[bytes]
    file: BinaryIO  # its output file, which has no name, so that none is left behind
    output: bytes = b""
    reader: threading.Thread | None = None

    def discard_output(self) -> None:
        """Read and drop what it prints from now on: with a full pipe it would stop sampling."""
        assert self.process.stdout is not None
        pieces = iter(partial(cast("BufferedReader", self.process.stdout).read1, 65536), b"")
        self.reader = threading.Thread(target=deque, args=(pieces, 0), name="meshbook py-spy", daemon=True)
        self.reader.start()

    def end(self) -> bytes:
        """End the process; return its output, empty if there is none."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(ENDS_WITHIN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.reader is not None:
            self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        with self.file:
            self.file.seek(0)
            return self.file.read()


class Profiler(Actor):
    """Profiles the workers of its host. `pid_of` returns the process id of a node, 0 if it has none."""

    def __init__(self, pid_of: Callable[[str], int]) -> None:
        self._pid_of = pid_of
        self._spies: dict[str, _ProfilerProcess] = {}

    @endpoint
    def begin(self, nodes: list[str], rate: int) -> dict[str, str]:
        """Begin to profile those of these nodes that run here: return the error of each, or "" if it has begun."""
        pids = {node: pid for node in nodes if (pid := self._pid_of(node))}
        if (program := find_spy()) is None:
            return dict.fromkeys(pids, "py-spy is not installed; run pip install 'meshbook[debug]'")
        begun = {node: _start(program, pid, rate) for node, pid in pids.items()}
        until = time.monotonic() + BEGINS_WITHIN
        why = {node: _wait_begun(spy, until) for node, spy in begun.items()}
        for node, spy in begun.items():
            if why[node]:
                spy.end()
            else:
                self._end([node])  # an older profile that was never ended
                spy.discard_output()
                self._spies[node] = spy
        return why

    @endpoint
    def end(self, nodes: list[str]) -> dict[str, bytes]:
        """End these profiles; return py-spy's output of each, in the format of speedscope."""
        return self._end(nodes)

    def __cleanup__(self, error: BaseException | None) -> None:
        self._end(list(self._spies))

    def _end(self, nodes: Sequence[str]) -> dict[str, bytes]:
        known = {node: spy for node in nodes if (spy := self._spies.pop(node, None)) is not None}
        for spy in known.values():
            with contextlib.suppress(ProcessLookupError):
                spy.process.send_signal(signal.SIGINT)  # all at once; the line below waits for each
        return {node: spy.end() for node, spy in known.items()}


def _start(program: str, pid: int, rate: int) -> _ProfilerProcess:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - `_ProfilerProcess.end` closes it
    command = [program, "record", "--pid", str(pid), "--rate", str(rate), "--duration", str(MOST_SECONDS)]
    command += ["--idle", "--threads", "--nonblocking", "--format", "speedscope"]
    command += ["--output", f"/proc/self/fd/{file.fileno()}"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(file.fileno(),),
        start_new_session=True,
    )
    return _ProfilerProcess(process, file)


def _wait_begun(spy: _ProfilerProcess, until: float) -> str:
    """Wait until py-spy samples; return "" then, otherwise the error."""
    assert spy.process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(spy.process.stdout, selectors.EVENT_READ)
        while _BEGUN not in spy.output:
            if not selector.select(max(0.0, until - time.monotonic())):
                return f"py-spy did not start sampling within {BEGINS_WITHIN:g} s"
            if not (output := os.read(spy.process.stdout.fileno(), 4096)):
                return _why(spy.output)
            spy.output += output
    return ""


def _why(output: bytes) -> str:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    if any("ermission" in line for line in lines):
        return "py-spy is not permitted to read other processes; it needs root or the capability SYS_PTRACE"
    return f"py-spy: {lines[-1].strip()}" if lines else "py-spy exited without output"


def ask_profilers(procs: ProcMesh) -> ActorMesh:
    """Return the profilers on the hosts of these processes."""
    agents = procs.host_mesh._picked()
    everywhere = Extent(("hosts",), (len(agents),)).region
    return ActorMesh("profilers", Profiler, [Target(agent, PROFILER) for agent in agents], everywhere)


def begin_spying(procs: ProcMesh, rate: int) -> list[Future[dict[str, str]]]:
    """Begin to profile on all hosts; return a future for each host, of errors by node."""
    profilers = ask_profilers(procs)
    return list(profilers._call_each("begin", (([address.node for address in procs.nodes], rate), {})))


def end_spying(procs: ProcMesh) -> list[Future[dict[str, bytes]]]:
    """End the profiles on all hosts; return a future for each host, of the output by node."""
    return list(ask_profilers(procs)._call_each("end", (([address.node for address in procs.nodes],), {})))
