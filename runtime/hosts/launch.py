"""The spec that an agent receives at its start, and the folder of a run: creation, lock, removal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec

from meshbook.runtime.config import Settings, runtime_root
from meshbook.runtime.errors import LaunchError
from meshbook.runtime.hosts.launchers import DEVICES
from meshbook.runtime.transport.curve import KeyPair
from meshbook.runtime.wire.messages import Address

AGENT = "agent"
MARK = ".meshbook-run"  # the file by which a sweep recognizes the folder of a run


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class AgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The first line on an agent's standard input; the end of that input means that its controller is gone."""

    run: str
    node: str  # the name of its node
    controller: Address
    settings: Settings
    folder: str = ""  # of the run; on another host than the first, the agent makes one
    is_warm: bool = True  # whether it starts the warm fork server at once, or the plain one
    away: RemoteAgentSpec | None = None


class RemoteAgentSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The additional settings of an agent on another host than the first."""

    host: str  # its name
    keys: KeyPair
    address: str = ""  # the IP address to listen on; empty: the one from which it reaches one of `towards`
    towards: tuple[str, ...] = ()  # the IP addresses of the first host
    python: tuple[int, int]  # the controller's version of Python
    is_local: bool = False  # whether the host is the machine of the first one
    environment: dict[str, str] = {}  # variables of the processes there


decode_agent_spec = msgspec.json.Decoder(AgentSpec).decode


# Variables that describe a machine, or its part of a job. The controller's values are wrong on other hosts.
_OF_A_HOST = re.compile(
    f"{DEVICES}|(SLURM|SLURMD|SSH|PMI|PMIX|PBS)_.*|HOME|HOSTNAME|LOGNAME|SHELL|TMPDIR|USER|XDG_RUNTIME_DIR"
)
_IS_LEFT_OUT = re.compile(f"{_OF_A_HOST.pattern}|RAY_.*")  # Ray's are for its own workers


def environment_on_host(
    controller: Mapping[str, str], host: Mapping[str, str], *, configured: Mapping[str, str], chosen: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a worker on another host than the first: the controller's, where it is valid there.

    `host` is the environment of that host's agent. The variables that were `configured` for the host take precedence
    over both, and those `chosen` for the mesh over all.
    """
    ours = {name: value for name, value in controller.items() if not _IS_LEFT_OUT.fullmatch(name)}
    theirs = {name: value for name, value in host.items() if _OF_A_HOST.fullmatch(name)}
    return {**ours, **theirs, **configured, **chosen}


_ANSWER = b"meshbook agent: "
_LONGEST_LINE = 1 << 16


class AgentAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of an agent on another host, once others can connect; or the reason why they cannot."""

    address: Address | None = None
    error: str = ""


_decode_answer = msgspec.json.Decoder(AgentAnswer).decode


def encode_agent_answer(answer: AgentAnswer) -> bytes:
    """Return the answer as a line of its own, for standard output."""
    return b"\n" + _ANSWER + msgspec.json.encode(answer) + b"\n"


def read_agent_answer(output: IO[bytes]) -> AgentAnswer | str:
    """Read the output of an agent up to its answer; return what came instead if it ends without.

    Before the answer, the login shell of its host may print a banner, in any encoding.
    """
    printed = b""
    while line := output.readline(_LONGEST_LINE):
        if line.startswith(_ANSWER):
            with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
                return _decode_answer(line.removeprefix(_ANSWER))
        printed = (printed + line)[:_LONGEST_LINE]
    return printed.decode(errors="replace").strip()


class RunFolder:
    """The folder of one run. Every process that relies on it holds a shared lock, which ends with the process.

    So a folder that can be locked exclusively is a leftover, whatever happened to its owners and their pids.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1
        while self._lock < 0:
            self._lock = _make_and_lock(path)

    def close(self) -> None:
        """Release the folder; the last process to release it removes it."""
        if self._lock >= 0:
            self.disown()
            remove_if_unused(self.path)

    def disown(self) -> None:
        """Release the folder without removing it (in a forked child: leave it to the parent)."""
        os.close(self._lock)
        self._lock = -1


def make_folder(settings: Settings, run: str) -> RunFolder:
    """Make the folder of a new run, after removing those of dead runs. LaunchError if none can be made."""
    try:
        root = runtime_root(settings)
        sweep(root)
        return RunFolder(root / run)
    except OSError as error:
        remedy = "set MESHBOOK_RUNTIME_DIR to a folder of your own on a local disk"
        raise LaunchError(f"cannot make a folder for the run's sockets: {error}; {remedy}") from error


def _make_and_lock(path: Path) -> int:
    """Return the descriptor of the locked folder, or -1 if a sweep removed the folder before it was locked."""
    path.mkdir(mode=0o700, exist_ok=True)
    try:
        lock = os.open(path, _FOLDER)
    except FileNotFoundError:
        return -1
    fcntl.flock(lock, fcntl.LOCK_SH)
    try:
        if os.fstat(lock).st_ino == path.stat().st_ino:
            os.close(os.open(MARK, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=lock))
            return lock
    except FileNotFoundError:
        pass
    os.close(lock)
    return -1


def remove_if_unused(folder: Path) -> bool:
    """Remove a run's folder if no process holds it; return whether it did.

    Without the mark of a run the folder is removed only if it is empty: a run was killed as it began.
    """
    try:
        lock = os.open(folder, _FOLDER)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (folder / MARK).exists():
            _remove(folder)
        else:
            folder.rmdir()
        return True
    except OSError:
        return False
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a run's folder, the mark last: if this process is killed meanwhile, a sweep continues."""
    mark = folder / MARK
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path != mark:
            path.unlink(missing_ok=True)
    mark.unlink(missing_ok=True)
    try:
        folder.rmdir()
    except OSError:  # there is a new file, of a process that ends
        mark.touch(0o600)
        raise


def sweep(root: Path) -> int:
    """Remove the folders that killed runs left behind; return their number.

    Folders are recognized by names and marks: the user may keep other things in the root, which no process locks.
    """
    return sum(remove_if_unused(folder) for folder in root.iterdir() if is_of_a_run(folder))


def is_of_a_run(folder: Path) -> bool:
    return re.fullmatch(r"[0-9a-f]{8}", folder.name) is not None and folder.is_dir() and not folder.is_symlink()
