"""A process that waits to become a host: `run_worker_loop_forever` here, `attach_to_workers` in the client.

    AttachLauncher -> `dial` (a process of the client) ==== ZeroMQ, CURVE ==== WorkerLoop -> agent

The launcher runs `dial` as it runs ssh: a program that passes standard input and output on to an agent. The loop starts
an agent for each client that dials it, and serves the next client when that agent has ended. It ends when its agent was
shut down, as by `HostMesh.shutdown`.

Both sides must have the same key, which a client or a loop makes where there is none (`worker_key`). So the keys of a
run, which the client sends, reach processes of the same user only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import zmq

from meshbook.runtime.config import Settings, runtime_root
from meshbook.runtime.hosts.launchers import AgentProcess, agent_environment, start_process
from meshbook.runtime.transport.curve import KeyPair, Socket, ZapHandler, authenticate, guard

KEY_VARIABLE = "MESHBOOK_WORKER_KEY"
# Runs `main` with the words that follow.
COMMAND = (
    *("-P", "-c"),
    "import sys; from meshbook.runtime.hosts import worker_loop; sys.exit(worker_loop.main(sys.argv[1:]))",
)
END_SECONDS = 3.0  # for an agent to end its processes; less than a job waits for its loops
LOOK_MILLISECONDS = 1000  # between signs of a client, and between the loop's checks for them
SILENCE_SECONDS = 15.0  # after which a client is gone
TAIL_BYTES = 65536  # of an agent's stderr
LOOP_STAYS = 3  # exit status of an agent that has lost its controller, or whose host was drained by it
START, WRITE, CLOSE, ALIVE, STARTED, OUTPUT, ENDED = (
    *(b"start", b"write", b"close", b"alive"),  # to the loop
    *(b"started", b"output", b"ended"),  # to the client
)


def worker_key() -> KeyPair:
    """Return the key that worker loops and their clients share.

    It is MESHBOOK_WORKER_KEY (Z85, 40 characters), or the content of `worker.key` in `~/.config/meshbook`, which is
    made at first. Hosts that do not share the home directory need a copy. ValueError for an invalid key, or for a file
    that other users may access.
    """
    if not (text := os.environ.get(KEY_VARIABLE, "").strip()):
        path = key_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            # Written under another name first, so that no process reads a part; a link fails if another made the key.
            with tempfile.NamedTemporaryFile("wb", dir=path.parent) as new:
                new.write(zmq.curve_keypair()[1])
                new.flush()
                with contextlib.suppress(FileExistsError):
                    os.link(new.name, path)
        if (mode := path.stat().st_mode & 0o777) & 0o077:
            raise ValueError(f"other users may access the key file {path} (mode {mode:04o}); run chmod 600 {path}")
        text = path.read_text().strip()
    try:
        return KeyPair(zmq.curve_public(text.encode()), text.encode())
    except (ValueError, zmq.ZMQError) as error:
        raise ValueError(f"invalid key in {KEY_VARIABLE} or {key_file()}: {error}") from None


def key_file() -> Path:
    """Return the path of the file with the key."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home, "meshbook", "worker.key")


def endpoint_of(address: str, *, is_bound: bool = False) -> str:
    """Return ZeroMQ's endpoint for an address: `tcp://host:port`, `ipc://name`, or `dial-address@bind-address`.

    NotImplementedError for another transport, or `tcp://*`: other hosts need an address. ValueError for other text.
    """
    dialled, _, bound = address.partition("@")
    chosen = (bound or dialled) if is_bound else dialled
    scheme, separator, rest = chosen.partition("://")
    if not separator or not rest:
        raise ValueError(f"invalid address {address!r}; examples: tcp://gpu1:22222, ipc://worker-0")
    if scheme == "ipc":
        return f"ipc://{rest if os.path.isabs(rest) else runtime_root(Settings.from_environment()) / rest}"  # noqa: PTH117
    host, _, port = rest.rpartition(":")
    if scheme != "tcp" or host in ("", "*") or port.startswith("fd"):
        raise NotImplementedError(f"the address {chosen!r} is not supported; use tcp://host:port or ipc://name")
    return chosen


class WorkerLoop:
    """Starts agents for clients that dial this address. OSError if it is in use."""

    def __init__(self, address: str) -> None:
        keys = worker_key()
        endpoint = endpoint_of(address, is_bound=True)
        self._context: zmq.Context[Socket] = zmq.Context()
        self._zap = ZapHandler(self._context, keys)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 1000
        self._socket.ipv6 = True
        guard(self._socket, keys)
        before = os.umask(0o077)  # the socket of an ipc address is for this user
        try:
            self._socket.bind(_resolved(endpoint))
        except zmq.ZMQError as error:
            self.close()
            raise OSError(error.errno, f"the worker loop cannot listen at {address}: {error}") from error
        finally:
            os.umask(before)
        self._agents: dict[bytes, _LoopAgent] = {}
        self._is_over = False

    def serve(self) -> None:
        """Serve until an agent has been shut down."""
        try:
            while not self._is_over:
                self._serve_once()
        finally:
            for agent in self._agents.values():
                agent.hang_up()  # each ends its workers, and what these have started
            end = time.monotonic() + END_SECONDS
            for agent in self._agents.values():
                agent.end(max(0.0, end - time.monotonic()))
            self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        self._zap.close()
        self._context.term()

    def _serve_once(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        by_fd = {agent.output.fileno(): agent for agent in self._agents.values() if not agent.output.closed}
        for fd in by_fd:
            poller.register(fd, zmq.POLLIN)
        events = dict(poller.poll(LOOK_MILLISECONDS))
        if self._socket in events:
            client, kind, data = self._socket.recv_multipart()
            self._handle(client, kind, data)
        for fd, agent in by_fd.items():
            if fd in events:
                self._pass_on(agent)
        now = time.monotonic()
        for client, agent in list(self._agents.items()):
            if now > agent.heard + SILENCE_SECONDS:
                agent.hang_up()
            if (code := agent.process.poll()) is not None:
                del self._agents[client]
                self._socket.send_multipart([client, ENDED, b"%d\n" % code + agent.tail()])
                # It was shut down, unless the client has hung up or is lost, or the agent has crashed.
                self._is_over = self._is_over or (code == 0 and not agent.has_hung_up)

    def _handle(self, client: bytes, kind: bytes, data: bytes) -> None:
        if kind == START and client not in self._agents:
            self._agents[client] = _LoopAgent(client)
            self._socket.send_multipart([client, STARTED, b""])
        elif (agent := self._agents.get(client)) is not None:
            agent.heard = time.monotonic()
            if kind == WRITE:
                agent.write(data)
            elif kind == CLOSE:
                agent.hang_up()

    def _pass_on(self, agent: _LoopAgent) -> None:
        data = os.read(agent.output.fileno(), 65536)
        if data:
            self._socket.send_multipart([agent.client, OUTPUT, data])
        else:  # the agent has moved its output to its log
            agent.output.close()


class _LoopAgent:
    """The agent that a loop has started for a client."""

    def __init__(self, client: bytes) -> None:
        self.client = client
        self.heard = time.monotonic()
        self.has_hung_up = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the agent
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "meshbook.runtime.hosts.agent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=agent_environment(),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.output: IO[bytes] = self.process.stdout

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, which is reported
            self.process.stdin.write(data)
            self.process.stdin.flush()

    def hang_up(self) -> None:
        self.has_hung_up = True
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def end(self, seconds: float) -> None:
        """Wait so long for the end of the agent, which has no input any more; then kill it."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def tail(self) -> bytes:
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), TAIL_BYTES, max(0, size - TAIL_BYTES))


class AttachLauncher:
    """Starts agents by the worker loops at these addresses, by the names of their hosts."""

    outlives_controller = True
    lifelines: Sequence[Path] = ()

    def __init__(self, addresses: Mapping[str, str], timeout: float) -> None:
        self._addresses = {name: endpoint_of(address) for name, address in addresses.items()}
        self._timeout = timeout
        worker_key()  # raises ValueError here, and makes the file if there is none

    def is_local(self, host: str) -> bool:
        return self._addresses[host].startswith(("ipc:", "tcp://127.", "tcp://localhost:", "tcp://[::1]"))

    def start(self, host: str, agent: Sequence[str], log: Path) -> AgentProcess:
        # The loop runs the agent by its own interpreter.
        command = [sys.executable, *COMMAND, "dial", self._addresses[host], str(self._timeout)]
        return start_process(command, log)

    def give_back(self, host: str) -> None:
        """Do nothing, as in `close`."""

    def close(self) -> None:
        """Do nothing: the loops stay for the next client."""


def dial(endpoint: str, timeout: float) -> int:
    """Pass standard input and output on to an agent of the loop at this endpoint; return its exit status."""
    context: zmq.Context[Socket] = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 1000
    socket.ipv6 = True
    authenticate(socket, worker_key())
    socket.connect(endpoint)
    socket.send_multipart([START, b""])
    if not socket.poll(int(timeout * 1000)):
        print(
            f"attach failed: config push failed during attach: no worker loop answered at {endpoint} within "
            f"{timeout:g} s. Is it running, and does it have the same key ({KEY_VARIABLE} or {key_file()})?",
            file=sys.stderr,
        )
        socket.linger = 0
        return 1
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(0, zmq.POLLIN)
    spoke = time.monotonic()
    while True:
        events = dict(poller.poll(LOOK_MILLISECONDS))
        if 0 in events:
            if data := os.read(0, 65536):
                socket.send_multipart([WRITE, data])
            else:
                poller.unregister(0)
                socket.send_multipart([CLOSE, b""])
        if socket in events:
            kind, data = socket.recv_multipart()
            if kind == OUTPUT:
                os.write(1, data)
            elif kind == ENDED:
                code, _, tail = data.partition(b"\n")
                os.write(2, tail)
                return int(code) if int(code) >= 0 else 128 - int(code)
        if time.monotonic() > spoke + LOOK_MILLISECONDS / 1000:
            socket.send_multipart([ALIVE, b""])
            spoke = time.monotonic()


def _resolved(endpoint: str) -> str:
    """Return an endpoint to bind: ZeroMQ binds addresses and interfaces, not names of hosts."""
    scheme, _, rest = endpoint.partition("://")
    if scheme == "ipc":
        return endpoint
    host, _, port = rest.rpartition(":")
    # Weight: only a loop that listens on TCP needs it.
    import socket

    found = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)[0][4][0]
    return f"tcp://[{found}]:{port}" if ":" in str(found) else f"tcp://{found}:{port}"


def main(arguments: Sequence[str]) -> int:
    """Run `serve ADDRESS`, or `dial ENDPOINT SECONDS`."""
    if arguments[0] == "dial":
        return dial(arguments[1], float(arguments[2]))
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    WorkerLoop(arguments[1]).serve()
    return 0
