"""Hosts beyond the controller's own: `meshbook.hosts.command({"gpu1": ["ssh", "gpu1"], "gpu2": ["ssh", "gpu2"]})`.

Each function starts a host agent on some machines and returns their `HostMesh`, with a dimension `hosts`. From then on
they work as one host does: processes are spawned on the mesh, actors on these, and any process can send to any other.
Messages between hosts are encrypted (CURVE), with keys that only this run has.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from meshbook.runtime.actor.context import context
from meshbook.runtime.hosts.launchers import CommandLauncher
from meshbook.runtime.hosts.session import current_session
from meshbook.runtime.mesh.hosts import HostMesh

__all__ = ["command"]


def command(
    commands: Mapping[str, Sequence[str]],
    *,
    addresses: Mapping[str, str] | None = None,
    python: str | os.PathLike[str] = "",
) -> HostMesh:
    """Start a host for each name by a command, wait until all are up, and return their mesh: its dimension is `hosts`.

    A command is the prefix that runs the host agent there: `["ip", "netns", "exec", "h1"]`, or an empty one for another
    host on this machine. It must pass standard input and output on; the agent ends when its input is closed. meshbook
    must be importable there, by PYTHONPATH or as an installed package; `python` is the interpreter, by default this
    one.

    A host is reached at the address from which it reaches the controller, unless `addresses` names another. While all
    hosts of the run are on this machine, they listen on the loopback interface only. A host that is silent for
    `Settings.host_timeout` (MESHBOOK_HOST_TIMEOUT, 1.7 s) is lost, and its processes with it; a shorter network outage
    loses nothing. All hosts end with the session.

    Raises LaunchError, which names the host, if one does not come up within `Settings.launch_timeout`; ValueError for
    an invalid name, RuntimeError in a worker: only the client starts hosts.
    """
    if context().actor_instance.node.place is not None:
        raise RuntimeError("only the client can start hosts; pass their HostMesh to this actor instead")
    names = [_check(name, words) for name, words in commands.items()]
    if not names:
        raise ValueError("commands is empty; name at least one host: {'gpu1': ['ssh', 'gpu1']}")
    return current_session().remote.start(
        CommandLauncher(commands), names, addresses=addresses or {}, python=os.fspath(python)
    )


def _check(name: str, words: Sequence[str]) -> str:
    if not (isinstance(name, str) and name and len(name) <= 40 and name.replace("-", "").replace(".", "").isalnum()):
        raise ValueError(f"invalid host name {name!r}; use at most 40 letters, digits, dots and dashes")
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"host {name}: the command must be a list of strings such as ['ssh', 'gpu1'], not {words!r}")
    return name
