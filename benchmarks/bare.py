"""The base of calls: the cost that any runtime over pyzmq has, measured in the same run as meshbook.

Processes with blocking sockets over ipc, a pickled (name, args) there and a pickled value back, without futures,
routing, supervision or other threads. Bulk data is sent as it is, without a copy into or out of a frame of its own.

A client with one outstanding call knows which call an answer belongs to. One with many does not: in `pipeline` each
message carries the number of its call, the client receives whole messages (`recv_multipart`), and it finds the call
of each answer in a table, as any client of several peers must.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import struct
import subprocess
import sys
import tempfile

import zmq
import zmq.asyncio

NUMBER = struct.Struct("<Q")
NO_ANSWER = b"n"
PATIENCE = 5000  # milliseconds without a message after which a peer checks that its parent is alive


class BareCall:
    """A call that has been sent, and later its answer."""

    __slots__ = ("value",)
    value: bytes


class BareZeroMQ:
    """A ROUTER here, and so many DEALERs, each in a process of its own."""

    def __init__(self, count: int = 1) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bare")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set_hwm(0)
        url = f"ipc://{self._folder.name}/s"
        self._socket.bind(url)
        self._processes = [subprocess.Popen([sys.executable, __file__, url]) for _ in range(count)]
        self._peers = [self._socket.recv_multipart()[0] for _ in range(count)]

    # -- calls ---------------------------------------------------------------

    def call(self) -> None:
        """Send to the first peer, and receive its answer."""
        self.call_each(1)

    def call_each(self, count: int) -> None:
        """Send to so many peers, and receive the answers of all."""
        for peer in self._peers[:count]:
            self._send(peer, "echo")
        self._receive(count)

    def pipeline(self, times: int) -> None:
        """Send numbered calls to the first peer before reading the first answer; then settle each by its number."""
        socket, peer, pending = self._socket, self._peers[0], {}
        calls = [BareCall() for _ in range(times)]
        for number, call in enumerate(calls):
            pending[number] = call
            socket.send_multipart([peer, NUMBER.pack(number), pickle.dumps(("echo", (1,)), 5)])
        while pending:
            _, number, value = socket.recv_multipart()
            pending.pop(*NUMBER.unpack(number)).value = value
        for call in calls:
            pickle.loads(call.value)

    def broadcast(self, times: int) -> None:
        """Send to each peer, which does not answer; then wait until all have received everything.

        A frame of its own says that no answer is wanted, as in the program that the aim comes from.
        """
        for _ in range(times):
            for peer in self._peers:
                self._socket.send_multipart([peer, NO_ANSWER, pickle.dumps(("add", (1,)), 5)])
        self.call_each(len(self._peers))

    def _send(self, peer: bytes, name: str) -> None:
        self._socket.send_multipart([peer, pickle.dumps((name, (1,)), 5)])

    def _receive(self, times: int) -> None:
        for _ in range(times):
            self._socket.recv()
            pickle.loads(self._socket.recv())

    async def call_async(self, socket: zmq.asyncio.Socket) -> None:
        """Send to the first peer and receive its answer, by a socket of `on_a_loop`."""
        await socket.send_multipart([self._peers[0], pickle.dumps(("echo", (1,)), 5)])
        pickle.loads((await socket.recv_multipart())[1])

    def on_a_loop(self) -> zmq.asyncio.Socket:
        """Return the same socket for the running event loop; the caller must not close it."""
        return zmq.asyncio.Socket.from_socket(self._socket)

    # -- bulk ----------------------------------------------------------------

    def carry(self, bulk: memoryview) -> None:
        """Send bulk data to the first peer, and receive it back."""
        self._socket.send_multipart([self._peers[0], b"", bulk], copy=False)
        self._socket.recv_multipart(copy=False)

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._context.destroy(0)
        self._folder.cleanup()


def serve(url: str) -> None:
    """Serve the other side; it is killed at the end, and exits by itself if its parent is gone."""
    parent = os.getppid()
    socket = zmq.Context().socket(zmq.DEALER)
    socket.set_hwm(0)
    socket.connect(url)
    socket.rcvtimeo = PATIENCE
    socket.send(b"ready")
    while os.getppid() == parent:
        with contextlib.suppress(zmq.Again):
            while True:
                answer(socket)


def answer(socket: zmq.Socket[bytes]) -> None:
    """Handle one message."""
    message = socket.recv()
    if not message:  # bulk data follows
        socket.send(socket.recv(copy=False), copy=False)
        return
    if message == NO_ANSWER:
        pickle.loads(socket.recv())
        return
    if len(message) == NUMBER.size:  # no pickled call is as short: a numbered call follows
        _, (value,) = pickle.loads(socket.recv())
        socket.send_multipart([message, pickle.dumps(value, 5)])
        return
    name, (value,) = pickle.loads(message)
    if name == "echo":
        socket.send(pickle.dumps(value, 5))


if __name__ == "__main__":
    serve(sys.argv[1])
