"""The connections of torch.distributed in this process, and shutting them down.

Neither gloo nor a store can be aborted. Both react to the end of a connection: a thread that waits for it gets an error
at once. No API returns these sockets, so they are found in /proc: gloo's by the event loop that watches them, a store's
by the port of its server. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

OPEN = Path("/proc/self/fd")
DETAILS = Path("/proc/self/fdinfo")
INTERNET = (socket.AF_INET, socket.AF_INET6)


@dataclass(frozen=True, slots=True)
class WatchedDescriptor:
    """A descriptor that an epoll loop watches; `data` is the value that epoll returns with each event."""

    fd: int
    data: int
    inode: int


@dataclass(frozen=True, slots=True)
class TorchConnection:
    """A socket; the inode distinguishes it from a later one with the same descriptor."""

    fd: int
    inode: int


def parse_watched(details: str) -> list[WatchedDescriptor]:
    """Parse what an epoll descriptor watches from /proc/self/fdinfo (proc(5), lines that begin with `tfd`)."""
    found = []
    for line in details.splitlines():
        if line.startswith("tfd:"):
            words = line.replace(":", " ").split()
            fields = dict(zip(words[::2], words[1::2], strict=True))
            found.append(WatchedDescriptor(int(fields["tfd"]), int(fields["data"], 16), int(fields["ino"], 16)))
    return found


def is_loop_of_gloo(watched: Iterable[WatchedDescriptor], names: Mapping[int, str]) -> bool:
    """Return whether these descriptors are watched by a loop of gloo: a listener, connections, a pipe.

    Gloo's events carry the address of a handler, those of Python and libuv (torch's store) the descriptor. And it
    watches no eventfd, as ZeroMQ and gRPC do. `names`: of the open files, by descriptor.
    """
    kinds = {_kind(names.get(each.fd, "")) for each in watched}
    # A descriptor is 32 of the 64 bits; the others are undefined.
    has_handlers = all(each.data & 0xFFFFFFFF != each.fd for each in watched)
    return has_handlers and "socket" in kinds and kinds <= {"socket", "pipe"}


def gloo_connections() -> list[TorchConnection]:
    """Return all sockets of this process's gloo groups."""
    names = dict(_open_files())
    found = []
    for fd in (fd for fd, name in names.items() if name == "anon_inode:[eventpoll]"):
        with contextlib.suppress(OSError):  # closed meanwhile
            watched = parse_watched((DETAILS / str(fd)).read_text())
            if is_loop_of_gloo(watched, names):
                found += [TorchConnection(each.fd, each.inode) for each in watched if _kind(names[each.fd]) == "socket"]
    return found


def connections_to(ports: Set[int]) -> list[TorchConnection]:
    """Return this process's TCP connections to these ports, on any host."""
    sockets = (
        TorchConnection(fd, int(name[len("socket:[") : -1]))
        for fd, name in _open_files()
        if name.startswith("socket:[")
    )
    return [each for each in sockets if _peer_port(each.fd) in ports]


def cut(connections: Iterable[TorchConnection]) -> int:
    """Shut down these connections for both sides, and return their number. Their owners read EOF."""
    return sum(map(_cut, connections))


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _open_files() -> Iterator[tuple[int, str]]:
    """Yield (descriptor, name of its file): `socket:[5193228]`, `anon_inode:[eventpoll]`, `/dev/null`."""
    for entry in OPEN.iterdir():
        with contextlib.suppress(OSError):
            yield int(entry.name), str(entry.readlink())


@contextlib.contextmanager
def _twin(fd: int) -> Iterator[socket.socket]:
    """Yield a socket object for a copy of the descriptor."""
    with socket.socket(fileno=os.dup(fd)) as twin:
        yield twin


def _peer_port(fd: int) -> int | None:
    with contextlib.suppress(OSError), _twin(fd) as twin:
        if twin.family in INTERNET:
            return int(twin.getpeername()[1])
    return None


def _cut(connection: TorchConnection) -> bool:
    with contextlib.suppress(OSError), _twin(connection.fd) as twin:
        is_the_same = os.fstat(twin.fileno()).st_ino == connection.inode
        if is_the_same and not twin.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            twin.shutdown(socket.SHUT_RDWR)
            return True
    return False
