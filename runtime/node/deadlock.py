"""Who waits for whom: finds actors that wait for each other in a ring, each at a message that it cannot leave.

An actor that has waited for a while sends a probe after its own call; who is found waiting adds himself to the path and
sends it on after his. A probe that comes back to a wait that is still the same has gone round a ring. That is only a
suspicion, for an answer may be under way on another path than the probe took; the same ring, seen a second time with
each of the same waits, is a deadlock. (Edge chasing, after Chandy, Misra and Haas, 1983.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from meshbook.runtime.actor.context import name_of
from meshbook.runtime.errors import DeadlockError
from meshbook.runtime.node.calls import Target
from meshbook.runtime.node.running import Running

# (node, actor, the endpoint that waits, the number of the wait, the endpoint that is waited for)
Step: TypeAlias = tuple[str, str, str, int, str]
Send: TypeAlias = Callable[[Target, list[Step]], None]  # to whoever keeps the target
PERIOD = 0.25  # seconds between two looks at who waits; a deadlock is reported after two or three


class Watch:
    """Looks after the waits of one node. `who` lists its actors with what each is at; `send` passes a probe on."""

    def __init__(
        self,
        node: str,
        who: Callable[[], Iterable[tuple[str, Running]]],
        send: Send,
        later: Callable[[float, Callable[[], object]], None],
    ) -> None:
        self._node = node
        self._who = who
        self._send = send
        self._later = later
        self._is_awake = False
        self._seen: dict[str, int] = {}  # by actor, the wait that it was in at the last look
        # Which waits' probes went on from which actors since then: once is enough, or they would take every path.
        self._passed: set[tuple[str, str, int, str]] = set()

    def wake(self) -> None:
        """Somebody waits. Cheap, since every wait says so."""
        if not self._is_awake:
            self._is_awake = True
            self._later(PERIOD, self.look)

    def look(self) -> None:
        """Send probes after the waits that have lasted since the last look."""
        self._is_awake = False  # first, so that a wait that begins now wakes us
        self._passed.clear()
        waits = {key: wait for key, running in self._who() if (wait := running.waiting()) is not None}
        for key, running in self._who():
            if key in waits and waits[key][0] == self._seen.get(key):
                self._follow([], key, running)
        self._seen = {key: serial for key, (serial, _) in waits.items()}
        if waits:
            self.wake()

    def follow(self, path: list[Step], key: str, running: Running) -> None:
        """A probe has come for this actor: is it kept from its messages, and by what?"""
        node, actor, _, serial, _ = path[0]
        passed = node, actor, serial, key
        if any(step[:2] == (self._node, key) for step in path):
            self._close(path, key, running)
        elif passed not in self._passed:
            self._passed.add(passed)
            self._follow(path, key, running)

    def _follow(self, path: list[Step], key: str, running: Running) -> None:
        if (wait := running.waiting()) is None:
            return
        serial, future = wait
        for target, endpoint in future.owing():
            step = self._node, key, running.endpoint, serial, endpoint
            self._send(target, [*path, step])

    def _close(self, ring: list[Step], key: str, running: Running) -> None:
        """The probe is back where it has been. One member of a ring raises, always the same: that frees the others."""
        node, actor, _, serial, _ = ring[0]
        if (node, actor) != (self._node, key) or (node, actor) != min((step[0], step[1]) for step in ring):
            return
        wait = running.waiting()
        if wait is None or wait[0] != serial:
            return
        if running.suspicion == ring:
            wait[1].fail(DeadlockError(draw(ring)))
        running.suspicion = ring


def draw(ring: list[Step]) -> str:
    """The ring in words, a line for each who waits."""
    lines = []
    for index, (node, actor, endpoint, _, wanted) in enumerate(ring):
        whom = name_of(ring[(index + 1) % len(ring)][1])
        lines.append(f"    {name_of(actor)}.{endpoint}() on {node} waits for {whom}.{wanted}()")
    return "\n".join(
        [
            "these actors wait for each other, and none can go on: each handles one message at a time",
            *lines,
            "Do not wait inside one of these endpoints, or make it a @concurrent_endpoint.",
        ]
    )
