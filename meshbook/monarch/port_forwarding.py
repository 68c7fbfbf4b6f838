"""Monarch's `PortForwarder`: connections to ports on some hosts reach ports on others, through the run's own messages.

    client -> listening actor == messages, encrypted between hosts ==> connecting actor -> server

No host has to reach the port itself. Each connection is one pair of sockets with a read and a write loop; a loop waits
for the answer of each chunk, so a slow reader slows its writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from types import TracebackType
from typing import Any, Self

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.endpoint import concurrent_endpoint
from meshbook.runtime.errors import MeshbookError
from meshbook.runtime.mesh.actors import current_node
from meshbook.runtime.mesh.host_ownership import when_ended
from meshbook.runtime.mesh.hosts import HostMesh
from meshbook.runtime.mesh.procs import ProcMesh, handle_failures

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


class PortForwarder:
    """Forwards ports, from `forward` until `close` or the end of one of the hosts. A context manager.

    `ports` are those that listen, in the order of ranks.

        with PortForwarder.forward(this_host(), state.trainers.slice(hosts=0), connect_port=6006) as forwarder:
            webbrowser.open(f"http://localhost:{forwarder.port}")
    """

    def __init__(self, meshes: list[ProcMesh], ports: list[int]) -> None:
        self._meshes = meshes
        self.ports = ports

    @classmethod
    def forward(
        cls,
        listen_mesh: HostMesh,
        connect_mesh: HostMesh,
        *,
        connect_port: int,
        listen_port: int = 0,
        listen_address: str = LOOPBACK,
        connect_address: str = LOOPBACK,
    ) -> Self:
        """Forward connections at each host of `listen_mesh` to the host of the same rank of `connect_mesh`.

        `connect_address` is looked up there. A `listen_port` of 0 takes a free one. Connections to the loopback address
        come from the same machine only. Starts one process on each host. ValueError for meshes of different shape and
        invalid ports; ActorError if a port is taken. Nothing stays open after an error.
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
            for mesh in (*meshes, listening, connecting):
                handle_failures(mesh, lambda failure: True)  # a lost host ends its connections, not this program
            at, to = (listen_address, listen_port), (connect_address, connect_port)
            ports = list(listening.listen.call(connecting, at, to).get().values())
        except BaseException:
            for procs in meshes:
                procs.stop("its ports could not be forwarded")
            raise
        forwarder = cls(meshes, ports)
        for procs in meshes:
            for address in procs.nodes:  # the first that ends takes the others with it
                when_ended(current_node(), [address.node]).when_done(forwarder._begin_to_close)
        return forwarder

    @property
    def port(self) -> int:
        """The port of the first rank."""
        return self.ports[0]

    def close(self) -> None:
        """Close all connections, and end the processes. Idempotent."""
        for procs in self._meshes:
            with contextlib.suppress(RuntimeError):  # its hosts have been shut down
                procs.stop("its ports are no longer forwarded").get()

    def _begin_to_close(self) -> None:
        for procs in self._meshes:
            with contextlib.suppress(RuntimeError):
                procs.stop("a host of the forwarder has ended")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
