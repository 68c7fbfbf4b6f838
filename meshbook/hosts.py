"""Hosts beyond the controller's own: `meshbook.hosts.command({"gpu1": ["ssh", "gpu1"], "gpu2": ["ssh", "gpu2"]})`.

Each function starts a host agent on some machines and returns their `HostMesh`, with a dimension `hosts`. From then on
all is as on one host: processes are spawned on it, actors on these, and messages go from any to any. Messages between
hosts are encrypted (CURVE), with keys that only this run has.
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

    A command is what is to stand before that of the host agent so that it runs there: `["ip", "netns", "exec", "h1"]`,
    or none for one more on this machine. It has to pass standard input and output on, and the agent ends when its input
    does. meshbook is found there by PYTHONPATH or because it is installed; `python` is the interpreter, else ours.

    A host is reached at the address from which it reaches the controller, where `addresses` names no other.
    While all hosts of the run are on this machine, they listen on the loopback interface alone.
    One that is silent for `Settings.host_timeout` (MESHBOOK_HOST_TIMEOUT, 1.7 s) is lost, and its processes with it; a
    shorter cut of the network loses nothing. All hosts end with the session.

    Raises LaunchError, which names the host, where one does not come up within `Settings.launch_timeout`; ValueError
    for a name that cannot be, RuntimeError in a worker: hosts are the client's.
    """
    if context().actor_instance.node.place is not None:
        raise RuntimeError("hosts are started by the client, not by an actor; their HostMesh may be passed to actors")
    names = [_check(name, words) for name, words in commands.items()]
    if not names:
        raise ValueError("at least one host is wanted: {'gpu1': ['ssh', 'gpu1']}")
    return current_session().remote.start(
        CommandLauncher(commands), names, addresses=addresses or {}, python=os.fspath(python)
    )


def _check(name: str, words: Sequence[str]) -> str:
    if not (isinstance(name, str) and name and len(name) <= 40 and name.replace("-", "").replace(".", "").isalnum()):
        raise ValueError(f"a host is named by letters, digits, dots and dashes, 40 at most; not {name!r}")
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"host {name}: a command is a list of words, as ['ssh', 'gpu1']; not {words!r}")
    return name
