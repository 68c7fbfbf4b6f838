"""Where a process lives, as its transport sees it: whom it reaches by a socket of its own host, and whom not. Pure.

    ipc://<folder>/<node>       a node of the first host, where the controller is
    tcp://<ip>:<port>/<node>    a node of another host, behind the gateway that listens there

On its own host every node is reached by a socket in the run's folder. For a node of another host its frames go to a
*lane*: a socket that the gateway of this host binds when it is asked to, one for each such node.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from meshbook.runtime.wire.messages import Address

IPC = "ipc://"
TCP = "tcp://"
GATEWAY = "gateway"  # the socket at which it is asked for lanes
_MOST_BYTES = 107


class LaneRequest(msgspec.Struct, frozen=True, array_like=True):
    """Bind the lane to this node, in this of its lives; who asks.

    A node that is healed gets a lane of its own for each life: what was on the way to the one before is not for it.
    """

    to: Address
    life: int
    sender: Address


@dataclass(frozen=True)
class Home:
    """A host as one of its processes knows it: the folder of its sockets, and what its nodes' addresses begin with."""

    folder: Path
    prefix: str
    first: str  # the prefix of the first host

    @classmethod
    def of_first_host(cls, folder: Path) -> Home:
        """That of the controller, and of all processes of its host."""
        prefix = f"{IPC}{folder}/"
        return cls(folder, prefix, prefix)

    def address(self, node: str) -> Address:
        """That of a node of this host."""
        return Address(node, f"{self.prefix}{node}")

    def socket(self, node: str) -> str:
        """The URL at which a node of this host listens. ValueError where the path is too long for a socket."""
        path = str(self.folder / node)
        if len(path.encode()) > _MOST_BYTES:
            raise ValueError(
                f"{path} is over {_MOST_BYTES} bytes, the limit of a Unix socket: "
                "set MESHBOOK_RUNTIME_DIR to a shorter folder"
            )
        return IPC + path

    def is_elsewhere(self, to: Address) -> bool:
        """Whether this node is on another host of the run."""
        host = host_of(to)
        return host != self.prefix and (host == self.first or host.startswith(TCP))

    def lane(self, request: LaneRequest) -> str:
        """The URL of the lane to a node of another host."""
        name = f"{request.to.url}#{request.life}"
        return self.socket("lane-" + hashlib.blake2b(name.encode(), digest_size=8).hexdigest())

    def nearest(self, to: Address) -> str:
        """The URL at which a node of this host, or of the first host of any run, listens."""
        return self.socket(to.node) if host_of(to) == self.prefix else to.url


def host_of(address: Address) -> str:
    """The prefix of the host that a node is on."""
    return address.url.removesuffix(address.node)


def ip_of(prefix: str) -> str:
    """The IP address of a host's gateway."""
    return describe(prefix).rpartition(":")[0].strip("[]")


def describe(prefix: str) -> str:
    """`10.0.0.7:40123`, as errors name a host's gateway."""
    return prefix.removeprefix(TCP).rstrip("/")
