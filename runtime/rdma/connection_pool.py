"""The connection pool of this process to the memory servers of host agents: reuses connections, closes idle ones."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

from meshbook.runtime.errors import ActorError, ExitReport, OwnerGone, RefusedMessage, SupervisionError, TransferTimeout
from meshbook.runtime.node.node import Node
from meshbook.runtime.rdma.backends import Deadline, Unsuitable
from meshbook.runtime.rdma.connection import DataConnection, be_admitted
from meshbook.runtime.rdma.memory_server import MEMORY, MemoryServerAddress
from meshbook.runtime.wire.messages import Address

MOST_CONNECTIONS = 8  # connections to one agent; further transfers wait for one
CONNECT_SECONDS = 3.0  # seconds; a firewall that drops packets costs this wait
IDLE_SECONDS = 20.0  # seconds until an idle connection is closed; the server waits longer


class ConnectionPool:
    """The connections of one process to all agents. Safe from any thread."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._lock = threading.Lock()  # guards the next two
        self._agents: dict[str, AgentConnections] = {}
        self._closed = False
        node.peers.when_down.append(self._on_agent_end)

    def to(self, agent: Address) -> AgentConnections:
        with self._lock:
            if (known := self._agents.get(agent.node)) is None:
                if self._closed:
                    raise Unsuitable("this process is leaving the run")
                known = self._agents[agent.node] = AgentConnections(self._node, agent)
            return known

    def trouble(self, agent: Address) -> str:
        """Return why this agent cannot be reached, if a connection has already failed for a lasting reason."""
        known = self._agents.get(agent.node)
        return known.trouble if known is not None else ""

    def _on_agent_end(self, report: ExitReport) -> None:
        """Close the connections to an ended agent, so that transfers fail even when the network link is cut."""
        with self._lock:
            known = self._agents.pop(report.node, None)
        if known is not None:
            known.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            agents = list(self._agents.values())
        for agent in agents:
            agent.close()


class AgentConnections:
    """The connections to one agent."""

    def __init__(self, node: Node, agent: Address) -> None:
        self._node = node
        self._agent = agent
        self._changed = threading.Condition()  # guards all below
        self._free: list[tuple[DataConnection, float]] = []  # with the time of last use; the last used is reused first
        self._used: set[DataConnection] = set()
        self._count = 0  # connections in use, free and being opened
        self._server_address: MemoryServerAddress | None = None
        self._is_due = False  # a check for idle connections is scheduled
        self._closed = False
        self.trouble = ""

    @contextlib.contextmanager
    def borrowed(self, deadline: Deadline, what: Callable[[], str]) -> Iterator[DataConnection]:
        """Yield a connection for one request. An error inside the block closes the connection.

        `what` describes the request and its progress, for errors.

        Raises Unsuitable if the agent cannot be reached, OwnerGone if the agent has ended, and TransferTimeout.
        """
        connection = self._take(deadline)
        connection.what, before = what, connection.what
        try:
            yield connection
        except BaseException:
            self._forget(connection)
            raise
        connection.what = before  # the closure would keep the moved memory alive
        self._put_back(connection)

    def _take(self, deadline: Deadline) -> DataConnection:
        self.check_agent()
        with self._changed:
            # A thread that is woken just as its time expires still takes the connection: no other thread would be
            # woken.
            if not self._changed.wait_for(
                lambda: self._free or self._count < MOST_CONNECTIONS or self._closed, deadline.left
            ):
                raise TransferTimeout(f"no connection to {self._agent.node} was free after {deadline.seconds:g} s")
            if self._closed:
                raise ConnectionError("the agent has ended, or this process is leaving the run")
            while self._free:
                connection, _ = self._free.pop()
                if not connection.has_something():
                    self._used.add(connection)
                    return connection
                connection.close()  # the server has closed it
                self._count -= 1
            self._count += 1
        return self._make(deadline)

    def _make(self, deadline: Deadline) -> DataConnection:
        try:
            connection = self._connect(deadline)
        except BaseException:
            with self._changed:
                self._count -= 1
                self._changed.notify()
            raise
        with self._changed:
            self._used.add(connection)
            if self._closed:
                connection.interrupt()
        return connection

    def _put_back(self, connection: DataConnection) -> None:
        with self._changed:
            self._used.discard(connection)
            self._free.append((connection, time.monotonic()))
            self._changed.notify()
        self._check_idle_later()

    def _check_idle_later(self) -> None:
        with self._changed:
            if self._is_due or not self._free:
                return
            self._is_due = True
        self._node.loop.call_later(IDLE_SECONDS, self._close_idle)

    def _forget(self, connection: DataConnection) -> None:
        with self._changed:
            self._used.discard(connection)
            self._count -= 1
            self._changed.notify()
        connection.close()

    def _close_idle(self) -> None:
        now = time.monotonic()
        with self._changed:
            self._is_due = False
            idle = [connection for connection, since in self._free if self._closed or now - since >= IDLE_SECONDS]
            self._free = [(connection, since) for connection, since in self._free if connection not in idle]
            self._count -= len(idle)
        for connection in idle:
            connection.close()
        self._check_idle_later()

    def close(self) -> None:
        """Interrupt the transfers that use these connections, and open no more."""
        with self._changed:
            self._closed = True
            for connection in self._used:
                connection.interrupt()
            self._changed.notify_all()
        self._close_idle()

    # -- connecting ---------------------------------------------------------------------------------

    def check_agent(self) -> None:
        """Raise OwnerGone if the agent has ended: all processes of its host end with it."""
        if (report := self._node.peers.report_of(self._agent.node)) is not None:
            raise OwnerGone(f"the host agent of the buffer's owner has ended, and its host is lost: {report.cause}")

    def _connect(self, deadline: Deadline) -> DataConnection:
        server = self._find_server(deadline)
        at = f"{server.ip}:{server.port}"
        try:
            sock = socket.create_connection((server.ip, server.port), min(CONNECT_SECONDS, max(0.001, deadline.left)))
        except OSError as error:
            self.check_agent()
            if isinstance(error, TimeoutError):
                deadline.check(lambda: f"connecting to the memory server of {self._agent.node} at {at}")
            why = f"its host agent's memory server at {at} cannot be reached ({error}); check for a firewall"
            raise self._unsuitable(why, error) from error
        connection = DataConnection(sock)
        try:
            be_admitted(connection, server.key, deadline)
        except RefusedMessage as error:
            connection.close()
            raise self._unsuitable(
                f"the server at {at} is not the memory server of its host agent: {error}", error
            ) from error
        except ImportError as error:  # an interpreter with packages of its own
            connection.close()
            raise self._unsuitable(f"this process lacks a package: {error}", error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _unsuitable(self, why: str, error: BaseException) -> Unsuitable:
        """Return the error to raise; record the reason for all owners on this host, unless the error may pass."""
        found = Unsuitable(why, error)
        if not found.may_pass:
            self.trouble = why
        return found

    def _find_server(self, deadline: Deadline) -> MemoryServerAddress:
        """Return the address of the memory server. Requested once: an agent keeps its server until it ends."""
        if self._server_address is None:
            asked = self._node.calls.ask(self._agent, MEMORY, "address", self._node.address)
            try:
                asked.wait_here(deadline.left)
                self._server_address = asked.get()
            except TimeoutError:
                raise TransferTimeout(
                    f"{self._agent.node}, the host agent of the buffer's owner, did not answer within "
                    f"{deadline.seconds:g} s"
                ) from None
            except ActorError as error:
                cause = error.exception or error
                raise self._unsuitable(f"its host agent cannot serve memory: {cause}", cause) from error
            except SupervisionError as error:
                self.check_agent()
                raise Unsuitable(f"its host agent does not answer: {error}") from error
        return self._server_address
