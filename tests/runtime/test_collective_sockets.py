"""Finding gloo's connections among all descriptors of a process, and ending them."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from meshbook.runtime.collectives.sockets import (
    TorchConnection,
    WatchedDescriptor,
    connections_to,
    cut,
    gloo_connections,
    is_loop_of_gloo,
    parse_watched,
)

DETAILS = """pos:\t0
flags:\t02
mnt_id:\t17
ino:\t1038
tfd:       21 events:       19 data:     5563233bb970  pos:0 ino:4f3e0f sdev:9
tfd:       17 events:       19 data:               11  pos:0 ino:4f3e0b sdev:f
"""
NAMES = {3: "socket:[1]", 4: "socket:[2]", 5: "pipe:[3]", 6: "anon_inode:[eventfd]", 7: "/dev/null"}


def test_what_a_loop_watches() -> None:
    assert parse_watched(DETAILS) == [
        WatchedDescriptor(21, 0x5563233BB970, 0x4F3E0F),
        WatchedDescriptor(17, 0x11, 0x4F3E0B),
    ]
    assert parse_watched("pos:\t0\n") == []


@pytest.mark.parametrize(
    ("watched", "is_gloo"),
    [
        ([(3, 0x5563), (5, 0x5564), (4, 0x5565)], True),
        ([(3, 0x5563)], True),  # of a torch whose loops have no pipe
        ([], False),
        ([(5, 0x5563)], False),  # no connection: there is nothing to cut
        ([(3, 3), (4, 0x7F0000000004)], False),  # libuv's, and Python's, which sets half of the bits
        ([(3, 0x5563), (6, 0x5564)], False),  # ZeroMQ's, or gRPC's
        ([(3, 0x5563), (9, 0x5564)], False),  # something that is closed
    ],
)
def test_whose_loop_it_is(watched: list[tuple[int, int]], is_gloo: bool) -> None:
    assert is_loop_of_gloo([WatchedDescriptor(fd, data, 1) for fd, data in watched], NAMES) is is_gloo


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client and the server's end of its connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        end, _ = server.accept()
        with client, end:
            yield client, end


def test_a_connection_is_cut_for_both(pair: tuple[socket.socket, socket.socket]) -> None:
    client, end = pair
    found = connections_to({client.getpeername()[1]})
    assert [each.fd for each in found] == [client.fileno()]
    assert cut(found) == 1
    assert client.recv(1) == end.recv(1) == b""
    assert client.fileno() >= 0  # its owner closes it


def test_another_socket_by_the_same_number_is_left_alone(pair: tuple[socket.socket, socket.socket]) -> None:
    client, end = pair
    (found,) = connections_to({client.getpeername()[1]})
    assert cut([TorchConnection(found.fd, found.inode + 1)]) == 0
    end.send(b"x")
    assert client.recv(1) == b"x"


def test_loops_of_python_are_not_gloos(pair: tuple[socket.socket, socket.socket]) -> None:
    before = gloo_connections()  # of groups that other tests of this process have made
    with select.epoll() as loop:
        loop.register(pair[0], select.EPOLLIN)
        assert gloo_connections() == before
