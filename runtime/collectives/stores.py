"""A new store for each process group that ranks create from the environment (`env://`).

By itself torch serves them all from one store at MASTER_PORT, as long as an object holds an earlier group: a device
mesh, a model, an RPC agent. The next `init_process_group()` finds the addresses of the earlier group there, and hangs.
So at each rendezvous rank 0 opens the store of the next one and sends its port to the others.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

_NEXT = "meshbook/next_port"


class GroupStores:
    """The stores of one rank. `variables` returns those that meshbook has set for it."""

    def __init__(self, variables: Callable[[], Mapping[str, str]]) -> None:
        self._variables = variables
        self._place: tuple[str, int] = ("", 0)  # MASTER_ADDR and MASTER_PORT, which a heal and an abort change
        self._port = 0  # of the next store
        self._server: Any = None  # the next store, on rank 0

    def install(self, rendezvous: ModuleType) -> None:
        """Replace the function in `torch.distributed.rendezvous` that creates stores."""
        create = rendezvous._create_c10d_store

        @functools.wraps(create)
        def create_anew(hostname: str, port: int, rank: int, world_size: int, *more: Any, **named: Any) -> Any:
            asked = {"MASTER_ADDR": hostname, "MASTER_PORT": str(port), "RANK": str(rank)}
            asked["WORLD_SIZE"] = str(world_size)
            if not asked.items() <= self._variables().items():  # of some ranks only, which have not agreed on a port
                return create(hostname, port, rank, world_size, *more, **named)
            if self._place != (hostname, port):
                self._place, self._port, self._server = (hostname, port), port, None
            store = create(hostname, self._port, rank, world_size, *more, **named)
            self._agree_on_next(store, rank)
            return store

        rendezvous._create_c10d_store = create_anew  # type: ignore[attr-defined]

    def _agree_on_next(self, store: Any, rank: int) -> None:
        if rank == 0:
            with contextlib.suppress(OSError):  # without another port the next store is at this one
                self._server = open_store(self._place[0])
                self._port = self._server.port
            store.set(_NEXT, str(self._port))
        else:
            self._port = int(store.get(_NEXT))


def open_store(host: str) -> Any:
    """Open a store at a port of this host that the system picks. Raises OSError if the host is not this one."""
    with listen(host) as listener:
        return open_store_at(listener)


def listen(host: str) -> socket.socket:
    """Return a socket at such a port. Clients that connect before a store is opened there wait for it."""
    return socket.create_server((host, 0), backlog=1024)  # torch by itself would listen on all networks


def open_store_at(listener: socket.socket) -> Any:
    """Open a store that accepts connections of a copy of this socket."""
    from torch.distributed import TCPStore  # weight: a second, if the fork server has not imported it

    host, port = listener.getsockname()[:2]
    # With `multi_tenant` a later TCPStore of this process at this port uses the same server.
    return TCPStore(
        *(host, int(port)),
        is_master=True,
        wait_for_workers=False,
        multi_tenant=True,
        master_listen_fd=os.dup(listener.fileno()),
    )
