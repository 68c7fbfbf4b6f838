"""The streams of links: one for each life of a node, as what is for one life must not come to the next. Pure."""

from __future__ import annotations

import re

_NAME = re.compile(r"[\w.-]+#\d+")  # the node's name is that of its socket, too


def stream_to(node: str, life: int) -> str:
    """The name of a stream on a link; `life` counts those that the node has had before."""
    return f"{node}#{life}"


def node_of(stream: str) -> str:
    """The node that it leads to."""
    return stream.partition("#")[0]


def is_stream(name: str) -> bool:
    """Whether that is a name of a stream, and not anything."""
    return _NAME.fullmatch(name) is not None


class Lives:
    """Which lives of nodes have ended, as far as one gateway knows."""

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}  # how many, by node

    def end(self, node: str, life: int) -> None:
        """This one has ended."""
        self._ended[node] = max(self._ended.get(node, 0), life + 1)

    def present(self, node: str) -> str:
        """The stream to the life that the node has now, or has next."""
        return stream_to(node, self._ended.get(node, 0))

    def is_present(self, stream: str) -> bool:
        """Whether it leads to that."""
        node, life = _parse(stream)
        return life == self._ended.get(node, 0)

    def is_former(self, stream: str) -> bool:
        """Whether it leads to one that has ended: it is used by somebody who has not heard of that yet."""
        node, life = _parse(stream)
        return life < self._ended.get(node, 0)


def _parse(stream: str) -> tuple[str, int]:
    node, _, life = stream.partition("#")
    return node, int(life)
