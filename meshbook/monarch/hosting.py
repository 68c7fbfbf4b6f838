"""`hosts_from_config`: the hosts of a named configuration."""

from __future__ import annotations

from meshbook.runtime.hosts.launchers import CommandLauncher
from meshbook.runtime.hosts.session import current_session
from meshbook.runtime.mesh.hosts import HostMesh

LOCAL_HOSTS = 2


def hosts_from_config(name: str) -> HostMesh:
    """Return two hosts on this machine, as a mesh with the dimension `hosts`; this version has no configurations.

    Raises LaunchError, which names the host, if one does not come up.
    """
    names = [f"{name}-{number}" for number in range(LOCAL_HOSTS)]
    launcher = CommandLauncher({each: [] for each in names})
    return current_session().remote.start(launcher, names, addresses={}, python="")
