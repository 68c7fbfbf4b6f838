"""Monarch's functions that run programs on hosts: `exec_command` on all of them, `shell` on one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import current_rank
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.ports import Channel, Port
from meshbook.runtime.mesh.hosts import HostMesh

END_OF_INPUT = b"\x04"  # Ctrl-D on a terminal
EOF_SECONDS = 5.0  # between the end of the input and that of a program which does not read it
EOF_WAIT = 0.1
HANG_UP_SECONDS = 1.0  # between SIGHUP and SIGKILL


class CommandActor(Actor):
    """Runs a program in the environment of its rank."""

    @endpoint
    def run(self, command: list[str], env: dict[str, str], workdir: str | None, output_dir: str | None) -> int:
        """Run the command and return its exit code. An empty first word is the interpreter of this host."""
        command = [command[0] or sys.executable, *command[1:]]
        with contextlib.ExitStack() as stack:
            streams: dict[str, Any] = {}
            if output_dir is not None:
                Path(output_dir).mkdir(parents=True, exist_ok=True)
                for name in ("stdout", "stderr"):
                    path = Path(output_dir, f"rank{current_rank().rank}.{name}")
                    streams[name] = stack.enter_context(path.open("wb"))
            done = subprocess.run(
                command, env=os.environ | env, cwd=workdir, stdin=subprocess.DEVNULL, check=False, **streams
            )
        return done.returncode if done.returncode >= 0 else 128 - done.returncode


def exec_command(
    host_mesh: HostMesh,
    cmd: str | Sequence[str],
    env: Mapping[str, str] | None = None,
    workdir: str | None = None,
    output_dir: str | None = None,
    rank: int | None = None,
    point: Mapping[str, int] | None = None,
    per_host: Mapping[str, int] | None = None,
) -> Future[int]:
    """Run a command on each host, in `per_host` processes; the future resolves to the highest exit code.

    A command that begins with a file `*.py` runs by Python, others in a shell. It has torchrun's variables. `rank`
    (row-major over hosts and `per_host`) or `point` (a coordinate for each dimension) selects one process. With
    `output_dir`, a folder of the hosts, the output goes to `rank0.stdout`, `rank0.stderr` and so on there.

    Raises ValueError for an empty command, or if both `rank` and `point` are given; IndexError for a rank out of range.
    """
    words = shlex.split(cmd) if isinstance(cmd, str) else list(cmd)
    if not words:
        raise ValueError("exec_command needs a command, such as 'nvidia-smi' or ['train.py', '--lr', '1']")
    if rank is not None and point is not None:
        raise ValueError("rank and point both select a process; pass one of them")
    if words[0].endswith(".py"):
        command = ["", *words]
    else:
        command = ["sh", "-c", cmd if isinstance(cmd, str) else shlex.join(words)]
    procs = host_mesh.spawn_procs(per_host=dict(per_host or {}), name="command")
    try:
        actors: Any = procs.spawn("command", CommandActor)
        if rank is not None:
            if not 0 <= rank < procs.size():
                raise IndexError(f"rank {rank} is out of range; there are {procs.size()} processes")
            actors = actors.flatten("ranks").slice(ranks=rank)
        elif point is not None:
            actors = actors.slice(**point)
        codes: Future[Any] = actors.run.call(command, dict(env or {}), workdir, output_dir)
    except BaseException:
        procs.stop()
        raise
    codes.when_done(lambda: procs.stop("the command has ended"))
    return codes.then(lambda found: max(found.values()))


class ShellActor(Actor):
    """Runs an interactive shell on a pseudo-terminal."""

    _process: subprocess.Popen[bytes] | None = None
    _waiting: threading.Thread  # ends the session once the shell has ended

    @endpoint
    def begin(self, output: Port[Any], env: dict[str, str], workdir: str | None, size: tuple[int, int]) -> None:
        """Start the shell. Its output goes to the port: bytes, and at its end the exit code."""
        self._terminal, theirs = pty.openpty()
        self._device = os.ttyname(theirs)
        termios.tcsetwinsize(theirs, size)
        shell = os.environ.get("SHELL", "/bin/sh")
        self._process = process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", shell],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm-256color"} | env,
            cwd=workdir,
        )
        os.close(theirs)

        def wait() -> None:
            process.wait()
            end_session(process.pid)  # what it has left behind may have the terminal open

        def read() -> None:
            with contextlib.suppress(OSError):  # EIO: no process has the terminal open
                while data := os.read(self._terminal, 65536):
                    output.send(data)
            waiting.join()
            output.send(process.wait())

        self._waiting = waiting = threading.Thread(target=wait, name="meshbook shell end", daemon=True)
        waiting.start()
        threading.Thread(target=read, name="meshbook shell output", daemon=True).start()

    @endpoint
    def write(self, data: bytes) -> None:
        """Pass input on to the shell."""
        with contextlib.suppress(OSError):  # the shell has ended
            os.write(self._terminal, data)

    @endpoint
    def end_input(self) -> None:
        """Let all programs of the shell read the end of the input; end the one in the foreground that does not."""
        threading.Thread(target=self._end_input, name="meshbook shell input", daemon=True).start()

    def _end_input(self) -> None:
        process, idle = self._process, 0.0
        assert process is not None
        while idle < EOF_SECONDS:
            # Each ^D ends the input of one reader. One that comes before other input was read would be lost.
            idle = 0.0 if self._unread() else idle + EOF_WAIT
            if idle:
                self._write_eof()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EOF_WAIT)
                return
        end_session(process.pid)

    def _unread(self) -> int:
        """Return the number of bytes of the input that no program has read."""
        try:
            device = os.open(self._device, os.O_RDWR | os.O_NOCTTY)
        except OSError:  # the shell has ended
            return 0
        try:
            return int.from_bytes(fcntl.ioctl(device, termios.FIONREAD, bytes(4)), sys.byteorder)
        except OSError:
            return 0
        finally:
            os.close(device)

    def _write_eof(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._terminal, END_OF_INPUT)

    def __cleanup__(self, error: Exception | None) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:  # else another session may have its pid
            end_session(self._process.pid)
        self._waiting.join(2 * HANG_UP_SECONDS)


def end_session(leader: int) -> None:
    """End all processes of a session: by SIGHUP, as the end of a terminal does, and then by SIGKILL."""
    members = [each for pid in psutil.pids() if (each := _member(leader, pid)) is not None]
    for end in (lambda each: each.send_signal(signal.SIGHUP), psutil.Process.kill):
        for each in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(each)
        _, members = psutil.wait_procs(members, timeout=HANG_UP_SECONDS)


def _member(leader: int, pid: int) -> psutil.Process | None:
    with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
        if os.getsid(pid) == leader:
            return psutil.Process(pid)
    return None


def shell(singleton_host_mesh: HostMesh, env: Mapping[str, str] | None = None, workdir: str | None = None) -> int:
    """Run an interactive shell on the only host of a mesh, on this terminal; return its exit code.

    When standard input ends, all programs there read the end of their input. Once they have read all of it, one that
    still runs in the foreground 5 s later is ended; `exec_command` runs programs that take longer. No process of the
    shell is left at the end. ValueError unless there is one host.
    """
    if singleton_host_mesh.size() != 1:
        raise ValueError(f"shell() needs one host, not {singleton_host_mesh.size()}; use hosts.slice(hosts=0)")
    procs = singleton_host_mesh.spawn_procs(name="shell")
    try:
        actor: Any = procs.spawn("shell", ShellActor)
        port, received = Channel[Any].open()
        actor.begin.call(port, dict(env or {}), workdir, _window_size()).get()
        with _keys_passed_to(actor):
            while isinstance(data := received.recv().get(), bytes):
                sys.stdout.write(data.decode(errors="replace"))
                sys.stdout.flush()
        return int(data)
    finally:
        procs.stop("the shell has ended").get()


def _window_size() -> tuple[int, int]:
    try:
        return termios.tcgetwinsize(sys.stdin.fileno())
    except (OSError, termios.error):
        return 24, 80


@contextlib.contextmanager
def _keys_passed_to(actor: Any) -> Iterator[None]:
    """Pass standard input on while the block runs; a terminal is in raw mode, so that Ctrl-C reaches the shell."""
    source = sys.stdin.fileno()
    before = termios.tcgetattr(source) if os.isatty(source) else None
    ours, theirs = os.pipe()

    def read() -> None:
        while True:
            ready, _, _ = select.select([source, ours], [], [])
            if ours in ready:
                return
            data = os.read(source, 65536)
            if not data:
                actor.end_input.call().get()
                return
            actor.write.call(data).get()

    if before is not None:
        tty.setraw(source)
    thread = threading.Thread(target=read, name="meshbook shell input", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.write(theirs, b"\0")
        thread.join()
        for fd in (ours, theirs):
            os.close(fd)
        if before is not None:
            termios.tcsetattr(source, termios.TCSADRAIN, before)
