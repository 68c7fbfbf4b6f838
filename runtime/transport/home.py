"""The addresses of the nodes of a run, as seen from one of its hosts. Does no I/O.

    unix://<folder>/<node>      a node of the first host, where the controller is
    tcp://<ip>:<port>/<node>    a node of another host, behind the gateway that listens there

A process connects to the nodes of its own host through their sockets in the run's folder. It sends frames for a node of
another host to the gateway of this host, through one connection for each such node: a *lane*.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from meshbook.runtime.wire.messages import Address

UNIX = "unix://"
TCP = "tcp://"
GATEWAY = "gateway"  # the file name of the gateway's socket
_MOST_BYTES = 107


class LaneRequest(msgspec.Struct, frozen=True, array_like=True):
    """The first frame of a connection to a gateway: all later ones are for this incarnation of this node."""

    to: Address
    incarnation: int
    sender: Address


decode_lane_request = msgspec.msgpack.Decoder(LaneRequest).decode


@dataclass(frozen=True)
class Home:
    """A host as seen by its processes: the folder of its sockets, and the prefix of its nodes' addresses."""

    folder: Path
    prefix: str
    first: str  # the prefix of the first host

    @classmethod
    def of_first_host(cls, folder: Path) -> Home:
        """Return the home of the controller and of all processes on its host."""
        prefix = f"{UNIX}{folder}/"
        return cls(folder, prefix, prefix)

    def address(self, node: str) -> Address:
        """Return the address of a node of this host."""
        return Address(node, f"{self.prefix}{node}")

    def path(self, node: str) -> Path:
        """Return the path of the socket of a node of this host. Raises ValueError if it is too long for a socket."""
        path = self.folder / node
        if len(str(path).encode()) > _MOST_BYTES:
            raise ValueError(
                f"{path} is longer than {_MOST_BYTES} bytes, the limit of a Unix socket: "
                "set MESHBOOK_RUNTIME_DIR to a shorter folder"
            )
        return path

    def is_elsewhere(self, to: Address) -> bool:
        """Whether this node is on another host of the run."""
        host = host_of(to)
        return host != self.prefix and (host == self.first or host.startswith(TCP))

    def path_of(self, to: Address) -> Path:
        """Return the path of the socket of a node of this host, or of the first host of any run."""
        return self.path(to.node) if host_of(to) == self.prefix else Path(to.url.removeprefix(UNIX))


def host_of(address: Address) -> str:
    """Return the prefix of the host that a node is on."""
    return address.url.removesuffix(address.node)


def ip_of(prefix: str) -> str:
    """Return the IP address of a host's gateway."""
    return describe(prefix).rpartition(":")[0].strip("[]")


def describe(prefix: str) -> str:
    """Return a host's gateway as errors name it, like `10.0.0.7:40123`."""
    return prefix.removeprefix(TCP).rstrip("/")
