"""Monarch's `PortForwarder`: connections to ports on some hosts reach ports on others, through the run's own messages.

    client -> listening actor == messages, encrypted between hosts ==> connecting actor -> server

No host has to reach the port itself. Each connection is one pair of sockets with a read and a write loop; a loop waits
for the answer of each chunk, so a slow reader slows its writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from typing import Any

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.endpoint import concurrent_endpoint, endpoint
from meshbook.runtime.actor.failure import MeshFailure
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.host_ownership import when_ended
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.procs import ProcMesh

CHUNK = 256 << 10  # bytes of one message
LOOPBACK = "127.0.0.1"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class ForwardingActor(Actor):
    """One end of forwarded connections: it listens for them, or makes them."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._streams: dict[int, Stream] = {}  # made here, by the number of the listening actor
        self._numbers = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __cleanup__(self, error: Exception | None) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        for _, writer in self._streams.values():
            writer.close()

    # -- the listening end -----------------------------------------------------------------

    @concurrent_endpoint
    async def listen(self, peers: Any, at: tuple[str, int], to: tuple[str, int]) -> int:
        """Forward connections at this address by the peer of the same rank; return the port."""
        peer = peers.flatten("peers").slice(peers=context().message_rank.rank)

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._forward(peer, to, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        self._server = await asyncio.start_server(accept, *at)
        return int(self._server.sockets[0].getsockname()[1])

    async def _forward(
        self, peer: Any, to: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        number = next(self._numbers)
        try:
            await peer.connect.call_one(number, to)
            await asyncio.gather(self._send(peer, number, reader), self._receive(peer, number, writer))
        except (OSError, MeshbookError) as error:  # the server refuses, a connection was reset, or the peer has ended
            self.logger.info("a forwarded connection to %s:%s has ended: %s", *to, error)
        finally:
            writer.close()
            with contextlib.suppress(MeshbookError):
                await peer.disconnect.call_one(number)

    async def _send(self, peer: Any, number: int, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            await peer.write.call_one(number, data)
        await peer.write.call_one(number, b"")

    async def _receive(self, peer: Any, number: int, writer: asyncio.StreamWriter) -> None:
        while data := await peer.read.call_one(number):
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    # -- the connecting end ----------------------------------------------------------------

    @concurrent_endpoint
    async def connect(self, number: int, to: tuple[str, int]) -> None:
        """Connect to a server. OSError if that fails."""
        self._streams[number] = await asyncio.open_connection(*to)

    @concurrent_endpoint
    async def read(self, number: int) -> bytes:
        """Return what the server has sent next; empty at the end."""
        return await self._streams[number][0].read(CHUNK)

    @concurrent_endpoint
    async def write(self, number: int, data: bytes) -> None:
        """Send to the server; empty data ends the stream."""
        _, writer = self._streams[number]
        if data:
            writer.write(data)
            await writer.drain()
        else:
            writer.write_eof()

    @concurrent_endpoint
    async def disconnect(self, number: int) -> None:
        """Close the connection."""
        if (stream := self._streams.pop(number, None)) is not None:
            stream[1].close()


class PortForwarder(Actor):
    """Forwards ports between hosts, until `close`, the end of this actor, or the end of one of the hosts.

    forwarder = this_proc().spawn("forwarder", PortForwarder)
    [port] = forwarder.forward.call_one(this_host(), trainers.slice(hosts=0), connect_port=6006).get()
    webbrowser.open(f"http://localhost:{port}")
    """

    def __init__(self) -> None:
        self._forwarded: list[list[ProcMesh]] = []

    def __supervise__(self, failure: MeshFailure) -> bool:
        return True  # a lost host ends its connections, not the program

    @endpoint
    def forward(
        self,
        listen_mesh: HostMesh,
        connect_mesh: HostMesh,
        *,
        connect_port: int,
        listen_port: int = 0,
        listen_address: str = LOOPBACK,
        connect_address: str = LOOPBACK,
    ) -> list[int]:
        """Forward connections at each host of `listen_mesh` to the host of the same rank of `connect_mesh`.

        Return the ports that listen, in the order of ranks. `connect_address` is looked up there. A `listen_port` of 0
        takes a free one. Connections to the loopback address come from the same machine only. Starts one process on
        each host. ValueError for meshes of different shape and invalid ports; ActorError if a port is taken. Nothing
        stays open after an error.
        """
        if listen_mesh.extent != connect_mesh.extent:
            raise ValueError(
                f"PortForwarder needs meshes of one shape: {dict(listen_mesh.extent)} listens and "
                f"{dict(connect_mesh.extent)} connects; select one host with hosts.slice(hosts=0)"
            )
        if not (0 < connect_port < 65536 and 0 <= listen_port < 65536):
            raise ValueError(f"invalid port: listen_port={listen_port}, connect_port={connect_port}")
        meshes: list[ProcMesh] = []
        try:
            for hosts in (listen_mesh, connect_mesh):
                meshes.append(hosts.spawn_procs(name="forwarder"))
            listening, connecting = (procs.spawn("forwarder", ForwardingActor) for procs in meshes)
            at, to = (listen_address, listen_port), (connect_address, connect_port)
            ports = list(listening.listen.call(connecting, at, to).get().values())
        except BaseException:
            _begin_to_stop(meshes, "its ports could not be forwarded")
            raise
        self._forwarded.append(meshes)
        ended = functools.partial(_begin_to_stop, meshes, "a host of the forwarder has ended")
        for address in (address for procs in meshes for address in procs.nodes):
            when_ended(current_node(), [address.node]).when_done(ended)  # the first takes the others with it
        return ports

    @endpoint
    def close(self) -> None:
        """Close all connections and ports, and end the processes. Idempotent."""
        for meshes in self._forwarded:
            for stopping in _begin_to_stop(meshes, "its ports are no longer forwarded"):
                stopping.get()
        self._forwarded.clear()


def _begin_to_stop(meshes: list[ProcMesh], reason: str) -> list[Future[None]]:
    stopping = []
    for procs in meshes:
        with contextlib.suppress(RuntimeError):  # its hosts have been shut down
            stopping.append(procs.stop(reason))
    return stopping
