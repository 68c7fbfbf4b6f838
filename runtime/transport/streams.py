"""Names of the streams of links. Each incarnation of a node has its own stream: its frames never reach the next one."""

from __future__ import annotations

import re

_NAME = re.compile(r"[\w.-]+#\d+")  # the node's name is also that of its socket


def stream_to(node: str, incarnation: int) -> str:
    """Return the name of the stream to an incarnation of a node; `incarnation` counts the earlier ones."""
    return f"{node}#{incarnation}"


def node_of(stream: str) -> str:
    """Return the node that a stream leads to."""
    return stream.partition("#")[0]


def is_stream(name: str) -> bool:
    """Whether this is a valid name of a stream."""
    return _NAME.fullmatch(name) is not None


class EndedIncarnations:
    """The incarnations of nodes that are known to have ended, for one gateway."""

    def __init__(self) -> None:
        self._ended: dict[str, int] = {}  # number of ended incarnations, by node

    def end(self, node: str, incarnation: int) -> None:
        """Note the end of this incarnation and of all earlier ones."""
        self._ended[node] = max(self._ended.get(node, 0), incarnation + 1)

    def present(self, node: str) -> str:
        """Return the stream to the current incarnation of a node, or to its next one."""
        return stream_to(node, self._ended.get(node, 0))

    def is_present(self, stream: str) -> bool:
        """Whether this is the stream to the current incarnation of its node, or to its next one."""
        node, incarnation = _parse(stream)
        return incarnation == self._ended.get(node, 0)

    def is_former(self, stream: str) -> bool:
        """Whether this stream leads to an ended incarnation; its sender does not know that yet."""
        node, incarnation = _parse(stream)
        return incarnation < self._ended.get(node, 0)


def _parse(stream: str) -> tuple[str, int]:
    node, _, incarnation = stream.partition("#")
    return node, int(incarnation)
