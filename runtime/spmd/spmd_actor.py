"""`SPMDActor`: one rank of an SPMD program, and the two functions that set torchrun's variables on a whole mesh."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from enum import Enum
from typing import cast

import msgspec

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.context import context
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.actor.future import Future
from meshbook.runtime.actor.values import ValueMesh
from meshbook.runtime.collectives.stores import listen, open_store_at
from meshbook.runtime.imports import when_imported
from meshbook.runtime.mesh.actors import ActorMesh
from meshbook.runtime.mesh.procs import ProcMesh
from meshbook.runtime.resources import free_port
from meshbook.runtime.spmd.environment import RunRendezvous, hosts_of, rank_environment
from meshbook.runtime.spmd.run_policy import EndRun
from meshbook.runtime.spmd.script import (
    ending_of,
    explain_exit,
    ignore_interrupts,
    main_restored,
    own_trace,
    run_as_main,
)

LOOPBACK = "127.0.0.1"


class AddrType(Enum):
    """The kind of address to use instead of a host's name."""

    IPv4 = "IPv4"
    IPv6 = "IPv6"


class SPMDActor(Actor):
    """One rank of an SPMD program: `procs.spawn("spmd", SPMDActor)`, then `main` on all of them.

    The rank is the rank in the mesh that is called, so a slice is a world of its own. A script runs on the actor's
    thread; a script that sets signal handlers needs the main thread: `procs.spawn_on_main("spmd", SPMDActor)`.
    """

    def __init__(self) -> None:
        # On rank 0 of a process that belongs to a script: the socket at MASTER_PORT, and then the store that uses it.
        self._listener: socket.socket | None = None
        self._store: object = None
        ignore_interrupts()  # if this is the main thread; a running script receives them

    @endpoint
    def get_host_port(self, use_ipaddr: AddrType | str | None = None) -> tuple[str, int]:
        """Return this host's name, or its address of that kind, and a TCP port that was free a moment ago.

        OSError if the host has no such address.
        """
        return host_address(use_ipaddr), free_port()

    @endpoint
    def get_rendezvous(self) -> tuple[str, int]:
        """Return the address at which the other ranks of its mesh reach this host, and a port at which a store listens.

        For one host this is the loopback address. The store answers once this process has imported torch, which the
        script does after it has set variables.
        """
        spec = context().actor_instance.spec
        address = LOOPBACK if spec is None else spec.world.rendezvous["MASTER_ADDR"]
        is_new = self._listener is None
        listener = self._listener = self._listener or listen(address)
        port = int(listener.getsockname()[1])
        if is_new:
            when_imported("torch", self._open_store)
        return address, port

    def _open_store(self) -> None:
        assert self._listener is not None
        with self._listener as listener:
            self._listener = None
            self._store = open_store_at(listener)

    @endpoint
    def setup_env(self, master_addr: str, master_port: int, hosts: Sequence[int] | None = None) -> None:
        """Set the variables that torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, ...) in this process.

        `hosts` is the host of each called rank, by any numbers; by default it is derived from the hosts' dimensions.
        ValueError if that is not possible.
        """
        self._set_environment(master_addr, master_port, hosts)

    @endpoint
    def main(
        self, master_addr: str, master_port: int, script_args: Sequence[str], hosts: Sequence[int] | None = None
    ) -> bool:
        """Set the variables and run a script (`["train.py", "--lr", "1"]`) or a module (`["-m", "package.train"]`).

        Returns True once it has ended without error. Raises the script's exception; ScriptExited if it exits with a
        code.
        """
        self._set_environment(master_addr, master_port, hosts)
        try:
            with main_restored():
                run_as_main(script_args)
        except SystemExit as error:
            script = " ".join(script_args[: 1 + (script_args[0] == "-m")])
            failed = explain_exit(error, script, context().message_rank.rank)
            if failed.code:
                raise failed from None
        except Exception as error:
            raise error.with_traceback(own_trace(error))
        finally:
            _flush()
        return True

    @endpoint
    def run_script(self, master_addr: str, master_port: int, script_args: Sequence[str]) -> EndRun:
        """Run `main` in a process that belongs to the script: return how the script ended instead of raising.

        Python's report of an uncaught exception goes to stderr.
        """
        self._set_environment(master_addr, master_port, None)
        try:
            run_as_main(script_args)
            ending = EndRun(0)
        except BaseException as error:
            ending = ending_of(error)
        _flush()
        return ending

    def _set_environment(self, master_addr: str, master_port: int, hosts: Sequence[int] | None) -> None:
        here = context()
        node, spec = here.actor_instance.node, here.actor_instance.spec
        point = here.message_rank
        run_id = node.run if spec is None else spec.world.mesh
        variables = rank_environment(
            point.rank,
            hosts if hosts is not None else hosts_of(point.extent, spec),
            RunRendezvous(master_addr, master_port, run_id),
        )
        if spec is not None:  # so that a mesh that is spawned from here does not inherit them
            node.place = msgspec.structs.replace(spec, updated_variables=variables)
        os.environ.update(variables)


def setup_torch_elastic_env(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | str | None = None,
) -> None:
    """Set torchrun's variables in all processes of a mesh or slice, so that `init_process_group()` works there.

    Ranks are row-major over the mesh, from 0; local ranks count the processes of one host. Rank 0 provides the parts of
    the rendezvous that are not given: a free port, and its host's name (or address: `use_ipaddr`), or the loopback
    address if there is only one host.
    """
    setup = _Setup(proc_mesh, master_addr, master_port, use_ipaddr)
    try:
        setup.set_variables(setup.get_host_port_of_first().get()).get()
    finally:
        setup.end()


async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | str | None = None,
) -> None:
    """The same as `setup_torch_elastic_env`, for code on an event loop."""
    setup = _Setup(proc_mesh, master_addr, master_port, use_ipaddr)
    try:
        await setup.set_variables(await setup.get_host_port_of_first())
    finally:
        setup.end()


class _Setup:
    """The two steps of a setup, for callers that wait with `get` or with await."""

    def __init__(
        self, procs: ProcMesh, address: str | None, port: int | None, use_ipaddr: AddrType | str | None
    ) -> None:
        self._hosts = procs.host_ranks
        if address is None and use_ipaddr is None and len(set(self._hosts)) == 1:
            address = LOOPBACK  # available whatever the network and the name service are like
        self._address, self._port, self._use_ipaddr = address, port, use_ipaddr
        self._actors = procs.spawn("spmd_env", SPMDActor)

    def get_host_port_of_first(self) -> Future[tuple[str, int]]:
        """Get the address and port of rank 0; values given by the user take precedence."""
        mesh = cast(ActorMesh, self._actors)
        first = cast(SPMDActor, mesh.slice(**dict.fromkeys(mesh.extent.labels, 0)))
        return first.get_host_port.call_one(self._use_ipaddr)

    def set_variables(self, found: tuple[str, int]) -> Future[ValueMesh[None]]:
        address = found[0] if self._address is None else self._address
        port = found[1] if self._port is None else self._port
        return self._actors.setup_env.call(address, port, self._hosts)

    def end(self) -> None:
        cast(ActorMesh, self._actors).stop("the environment is set")


def host_address(use_ipaddr: AddrType | str | None) -> str:
    """Return the name of this host, or its first address of that kind; OSError if it has none."""
    name = socket.gethostname()
    if use_ipaddr is None:
        return name
    kind = AddrType(use_ipaddr)
    family = socket.AF_INET if kind is AddrType.IPv4 else socket.AF_INET6
    try:
        return str(socket.getaddrinfo(name, None, family)[0][4][0])
    except socket.gaierror as error:
        raise OSError(f"the host {name!r} has no {kind.value} address ({error.strerror}); pass master_addr=") from error


def _flush() -> None:
    """Send the script's output before the answer."""
    if (capture := context().actor_instance.node.capture) is not None:
        capture.flush()
