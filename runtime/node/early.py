"""Messages for actors that are not here yet: a reference may travel faster than the Spawn of what it refers to.

Messages of one sender arrive in order, and who spawns counts: so an actor whose number is higher than all that its
spawner has sent here is still to come. Bounded like a queue: the sender waits when there is no room (`credits`).
"""

from __future__ import annotations

from meshbook.runtime.actor.context import spawner_of
from meshbook.runtime.wire.frames import Body
from meshbook.runtime.wire.messages import Call, Stop

Early = tuple[Call | Stop, Body]
SLACK = 64  # numbers that threads of one spawner, at it at the same time, may have taken in another order


class EarlyMessages:
    """Kept by the actor they are for."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}  # by spawner
        self._waiting: dict[str, list[Early]] = {}

    def is_early(self, key: str) -> bool:
        """Whether this actor, which is not known here, may still come."""
        return _number(key) > self._highest.get(spawner_of(key), -1) - SLACK

    def keep(self, key: str, message: Call | Stop, body: Body) -> None:
        self._waiting.setdefault(key, []).append((message, body))

    def arrived(self, key: str) -> list[Early]:
        """An actor is here: what came for it."""
        if (spawner := spawner_of(key)) and (number := _number(key)) > self._highest.get(spawner, -1):
            self._highest[spawner] = number
        return self._waiting.pop(key, [])

    def expect(self, spawner: str, first: int) -> None:
        """This spawner begins anew, and numbers its actors from here: none of those before will come."""
        self._highest[spawner] = first + SLACK - 1

    def close(self, spawner: str, number: int) -> list[Early]:
        """All that this spawner had numbered up to here has come, or never will: what was kept for the latter."""
        self._highest[spawner] = max(self._highest.get(spawner, -1), number + SLACK)
        return self._take([key for key in list(self._waiting) if spawner_of(key) == spawner and _number(key) <= number])

    def give_up(self, spawner: str) -> list[Early]:
        """This spawner sends nothing any more: what was kept for its actors."""
        return self._take([key for key in list(self._waiting) if spawner_of(key) == spawner])

    def _take(self, keys: list[str]) -> list[Early]:
        return [early for key in keys for early in self._waiting.pop(key, ())]


def _number(key: str) -> int:
    """7 of `trainer-7@controller`; below any number where the key has none."""
    number = key.rpartition("@")[0].rpartition("-")[2]
    return int(number) if number.isdecimal() else -SLACK - 1
