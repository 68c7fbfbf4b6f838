"""Who waits for whom: finds actors that wait for each other in a ring, each at a message that it cannot leave.

An actor that has waited for a while sends a probe after its own call. Where that call is being handled and waits, or
is in the queue of an actor whose present message waits, that wait is added to the path, and the probe goes on after
what it waits for. A probe that comes back to a wait that is still the same has gone round a ring. That is only a
suspicion, for an answer may be under way on another path than the probe took; a ring of waits that have all been seen
in rings before is a deadlock. (Edge chasing, after Chandy, Misra and Haas, 1983.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

from meshbook.runtime.actor.context import name_of
from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import DeadlockError
from meshbook.runtime.node.calls import Target
from meshbook.runtime.node.running import Running


class Step(NamedTuple):
    """One wait, and what it is for."""

    node: str
    actor: str
    endpoint: str  # that waits
    serial: int  # of the wait, in its process
    wanted: str  # the endpoint that is waited for
    call: int  # the number of that call, which this node made
    is_alone: bool  # whether the actor begins nothing else meanwhile; else it is an overlapping call


Send: TypeAlias = Callable[[Target, list[Step]], None]  # to whoever keeps the target
FOR_ROOM = -1  # in place of a call: what is waited for is room in the actor's queue
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
        self._passed: set[tuple[str, int, int]] = set()
        self._looks = 0

    def wake(self) -> None:
        """Somebody waits. Cheap, since every wait says so."""
        if not self._is_awake:
            self._is_awake = True
            self._later(PERIOD, self.look)

    def look(self) -> None:
        """Send probes after the waits that have lasted since the last look."""
        self._is_awake = False  # first, so that a wait that begins now wakes us
        self._passed.clear()
        self._looks += 1
        waits = {key: wait for key, running in self._who() if (wait := running.waiting()) is not None}
        for key, running in self._who():
            if key in waits and waits[key][0] == self._seen.get(key):
                self._send_on([], key, running, waits[key])
        self._seen = {key: serial for key, (serial, _) in waits.items()}
        if waits:
            self.wake()

    def follow(self, path: list[Step], key: str, running: Running) -> None:
        """A probe has come for a call that this keeps from its answer, if it waits: for what?"""
        if (wait := running.waiting()) is None:
            return
        serial, first = wait[0], path[0]
        passed = first.node, first.serial, serial
        if any((step.node, step.serial) == (self._node, serial) for step in path):
            self._close(path, running, wait)
        elif passed not in self._passed:
            self._passed.add(passed)
            self.wake()  # also where only overlapping calls wait: the next look forgets what has passed
            self._send_on(path, key, running, wait)

    def _send_on(self, path: list[Step], key: str, running: Running, wait: tuple[int, Future[Any]]) -> None:
        serial, future = wait
        for target, wanted, call in future.owing():
            step = Step(self._node, key, running.endpoint, serial, wanted, call, running.is_alone)
            self._send(target, [*path, step])

    def _close(self, ring: list[Step], running: Running, wait: tuple[int, Future[Any]]) -> None:
        """The probe is back where it has been. One member of a ring raises, always the same: that frees the others."""
        first = ring[0]
        if (first.node, first.serial) != (self._node, wait[0]):
            return  # whoever sent it waits for the ring, and is no part of it
        if (first.node, first.actor) != min((step.node, step.actor) for step in ring if step.is_alone):
            return
        suspected = running.suspected
        if all(suspected.get(step, self._looks) < self._looks for step in ring):
            wait[1].fail(DeadlockError(draw(ring)))
        for step in ring:
            suspected.setdefault(step, self._looks)


def draw(ring: list[Step]) -> str:
    """The ring in words, a line for each who waits."""
    lines = []
    for step, following in zip(ring, [*ring[1:], ring[0]], strict=True):
        whom = f"{name_of(following.actor)}.{step.wanted}()"
        if step.call == FOR_ROOM:
            whom = f"room in the queue of {name_of(following.actor)}, to send {step.wanted}()"
        lines.append(f"    {name_of(step.actor)}.{step.endpoint}() on {step.node} waits for {whom}")
    remedies = ["Do not wait inside one of these endpoints, or make it a @concurrent_endpoint."]
    if any(step.call == FOR_ROOM for step in ring):
        remedies.append("Send less at once, or raise MESHBOOK_QUEUE_MESSAGES or MESHBOOK_QUEUE_BYTES.")
    return "\n".join(
        [
            "these actors wait for each other, and none can go on: each handles one message at a time",
            *lines,
            *remedies,
        ]
    )
