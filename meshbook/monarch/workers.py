"""Worker loops under Monarch's names: processes that wait to become hosts, and the client that attaches to them.

Monarch trusts all connections. Here both sides must have the same key (`runtime.hosts.worker_loop`), so programs need
no change, and no other user can attach.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from meshbook import hosts
from meshbook.monarch.configuration import configure, get_global_config
from meshbook.monarch.keys import ChannelTransport
from meshbook.runtime.actor.future import Future
from meshbook.runtime.hosts.session import running_session
from meshbook.runtime.hosts.worker_loop import WorkerLoop
from meshbook.runtime.mesh.hosts import HostMesh

TRUST_ALL = "trust_all_connections"


def run_worker_loop_forever(*, ca: str, address: str, private_key: object = None) -> None:
    """Turn this process into a host that clients attach to; exit when a client shuts it down.

    `address` is `tcp://host:port`, `ipc://name`, or `dial-address@bind-address`. Raises NotImplementedError for another
    kind of address or for TLS, OSError if the address cannot be used.
    """
    run_worker_loop_until_shutdown(ca=ca, address=address, private_key=private_key)
    sys.exit(0)


def run_worker_loop_until_shutdown(*, ca: str, address: str, private_key: object = None) -> None:
    """As `run_worker_loop_forever`, but return when a client shuts the host down."""
    _check_no_tls(ca, private_key)
    WorkerLoop(address).serve()


def start_worker_loop_forever(*, ca: str, address: str, private_key: object = None) -> Future[None]:
    """Serve on a thread of its own; the future resolves when a client shuts the host down."""
    _check_no_tls(ca, private_key)
    loop = WorkerLoop(address)
    ended: Future[None] = Future.pending()

    def serve() -> None:
        try:
            loop.serve()
        except BaseException as error:
            ended.fail(error)
        else:
            ended.resolve(lambda: None)

    threading.Thread(target=serve, name="meshbook worker loop", daemon=True).start()
    return ended


def attach_to_workers(
    *, ca: str, workers: Sequence[str | Future[str]], name: str | None = None, private_key: object = None
) -> HostMesh:
    """Return the hosts of the worker loops at these addresses, as a mesh with the dimension `hosts`.

    Raises LaunchError, with the address, if a loop does not answer; NotImplementedError for TLS.
    """
    _check_no_tls(ca, private_key)
    addresses = [worker if isinstance(worker, str) else worker.get() for worker in workers]
    return hosts.attach(addresses, name=name or "worker")


def enable_transport(transport: ChannelTransport | str) -> None:
    """Choose Monarch's transport, before the first use of a mesh.

    meshbook has one transport within a host and one between hosts, so it only records the choice. Raises RuntimeError
    if another one is in use, ValueError for an unknown name.
    """
    before = get_global_config()["default_transport"]
    if running_session() is not None and _name_of(transport) != _name_of(before):
        raise RuntimeError(f"the transport {before!r} is in use; call enable_transport() before the first mesh")
    try:
        configure(default_transport=transport)
    except TypeError as error:
        raise ValueError(str(error)) from None


def _name_of(transport: object) -> object:
    return transport.value if isinstance(transport, ChannelTransport) else transport


def _check_no_tls(ca: str, private_key: object) -> None:
    if ca != TRUST_ALL or private_key is not None:
        raise NotImplementedError(
            f"TLS is not supported; pass ca={TRUST_ALL!r}. Both sides must have the same key file"
        )
