"""Waits between actors of several nodes: which are deadlocks, and which are not. Without a thread or a message."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from meshbook.runtime.actor.future import Future
from meshbook.runtime.errors import DeadlockError
from meshbook.runtime.node.call_table import Target
from meshbook.runtime.node.deadlock import DeadlockDetector, WaitStep, format_cycle
from meshbook.runtime.node.execution import Execution
from meshbook.runtime.wire.messages import Address

MANY = 12  # looks, when nothing is to come of them


class Question:
    """What a wait is for: these targets have not answered."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = targets

    helper: Any = None

    def describe(self, index: int | None) -> str:
        return ""

    def cancel(self, index: int | None) -> bool:
        return False

    def owing(self, index: int | None) -> list[Any]:
        return [(target, f"ask_{target.actor[0]}", 7) for target in self.targets]


class Net:
    """Actors `a`, `b`, ... on the nodes `n0`, `n1`, ...; each is at its endpoint `work`."""

    def __init__(self, where: Mapping[str, int]) -> None:
        self.messages = 0
        self._where = {name: f"n{number}" for name, number in where.items()}
        self._due: list[Any] = []
        self._mail: collections.deque[tuple[Target, list[WaitStep]]] = collections.deque()
        self._watches = {node: self._watch(node) for node in self._where.values()}
        self._running = {name: self._begin(name) for name in where}
        self._futures: dict[str, Future[Any]] = {}

    def _watch(self, node: str) -> DeadlockDetector:
        def who() -> Iterator[tuple[str, Execution]]:
            return ((f"{name}-1@c", self._running[name]) for name, place in self._where.items() if place == node)

        return DeadlockDetector(
            node,
            who,
            lambda target, path: self._mail.append((target, path)),
            lambda seconds, callback: self._due.append(callback),
        )

    def _begin(self, name: str) -> Execution:
        running = Execution(
            lambda target: False,
            describe=lambda: name,
            call_later=lambda seconds, callback: None,
            watch=lambda: self._watches[self._where[name]].wake(),
        )
        running.enter(("asker", 1), "work")
        return running

    def wait(self, name: str, *others: str) -> None:
        """An actor begins to wait for the answers of all these."""
        future: Future[Any] = Future.pending()
        targets = [Target(Address(self._where[other], ""), f"{other}-1@c") for other in others]
        future.set_pending_call(Question(targets), None)
        self._running[name].begin_wait(future, blocking=True, bounded=False)
        self._futures[name] = future

    def end(self, name: str) -> None:
        """Its wait is over."""
        self._running[name].end_wait()
        del self._futures[name]

    def place(self, name: str) -> tuple[str, str]:
        return self._where[name], name

    def look(self, times: int = 1) -> None:
        """Let a period pass on every node, and everything arrive."""
        for _ in range(times):
            due, self._due = self._due, []
            for callback in due:
                callback()
            while self._mail:
                target, path = self._mail.popleft()
                self.messages += 1
                node = target.address.node
                self._watches[node].follow(path, target.actor, self._running[target.actor[0]])

    def broken(self) -> dict[str, str]:
        """The waits that have failed, and their errors."""
        found = {}
        for name, future in self._futures.items():
            if future.done():
                error = future.exception(0)
                assert isinstance(error, DeadlockError)
                found[name] = str(error)
        return found

    @property
    def is_asleep(self) -> bool:
        return not self._due


def net(waits: Mapping[str, str], nodes: int = 1) -> Net:
    """`{"a": "bc"}`: a waits for b and c. The actors are dealt out to so many nodes."""
    names = sorted({*waits, *"".join(waits.values())})
    made = Net({name: place % nodes for place, name in enumerate(names)})
    for name, others in waits.items():
        made.wait(name, *others)
    return made


def everyone(names: Iterable[str]) -> dict[str, str]:
    """Each waits for all others."""
    names = list(names)
    return {name: "".join(other for other in names if other != name) for name in names}


# Waits, and the rings among them; in the last also some larger ones.
RINGS: dict[str, tuple[dict[str, str], list[str]]] = {
    "of one": ({"a": "a"}, ["a"]),
    "of two": ({"a": "b", "b": "a"}, ["ab"]),
    "of four": ({"c": "d", "d": "a", "a": "b", "b": "c"}, ["abcd"]),
    "with one who waits for its members": ({"a": "b", "b": "c", "c": "b"}, ["bc"]),
    "with somebody who works": ({"a": "bx", "b": "a"}, ["ab"]),
    "two through the first": ({"a": "bc", "b": "a", "c": "a"}, ["ab", "ac"]),
    "two through the last": ({"z": "bc", "b": "z", "c": "z"}, ["bz", "cz"]),
    "two that share a wait": ({"a": "b", "b": "cd", "c": "a", "d": "a"}, ["abc", "abd"]),
    "two apart": ({"a": "b", "b": "a", "c": "d", "d": "c"}, ["ab", "cd"]),
    "everyone for everyone": (everyone("abcd"), ["ad", "bd", "cd"]),
}


@pytest.mark.parametrize("nodes", [1, 2, 9])
@pytest.mark.parametrize("name", RINGS)
def test_each_ring_is_broken_at_its_first_member(name: str, nodes: int) -> None:
    """By node and name. Where an actor is in several, breaking one may be enough."""
    waits, rings = RINGS[name]
    made = net(waits, nodes)
    made.look(5)
    first = {min(ring, key=made.place) for ring in rings}
    assert set(made.broken()) == first


NO_RINGS = {
    "nobody waits": {},
    "one waits": {"a": "b"},
    "in a row": {"a": "b", "b": "c", "c": "d"},
    "by two ways": {"a": "bc", "b": "d", "c": "d"},
    "all for one": {"a": "d", "b": "d", "c": "d"},
    "one for all": {"a": "bcd"},
}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", NO_RINGS)
def test_waits_without_a_ring_are_none_however_long(name: str, nodes: int) -> None:
    made = net(NO_RINGS[name], nodes)
    made.look(MANY)
    assert made.broken() == {}


def test_a_ring_is_reported_when_it_is_seen_for_the_second_time() -> None:
    """At the first look no wait has lasted a whole period yet."""
    made = net({"a": "b", "b": "a"}, 2)
    made.look(2)
    assert made.broken() == {}
    made.look()
    assert set(made.broken()) == {"a"}


@pytest.mark.parametrize("mover", ["a", "b"])
def test_an_actor_that_continues_is_not_part_of_a_ring(mover: str) -> None:
    """Its next wait is another one, also where it looks the same."""
    waits = {"a": "b", "b": "a"}
    made = net(waits, 2)
    for _ in range(MANY):
        made.look()
        made.end(mover)
        made.wait(mover, waits[mover])
    assert made.broken() == {}


def test_a_broken_group_frees_the_other_ranks() -> None:
    made = net({"a": "b", "b": "c", "c": "a"}, 3)
    made.look(3)
    assert set(made.broken()) == {"a"}
    made.end("a")  # it fails, and answers c, which asks b, which asks it
    made.look(MANY)
    assert made.broken() == {}


def test_probes_do_not_take_every_path() -> None:
    """Of twelve that all wait for each other there are 10^8 paths."""
    made = net(everyone("abcdefghijkl"), 3)
    made.look(4)
    assert made.broken()
    assert made.messages < 4 * 12**3


def test_it_sleeps_without_waiters() -> None:
    made = Net({"a": 0, "b": 1})
    assert made.is_asleep
    made.wait("a", "b")
    assert not made.is_asleep
    made.look(3)
    assert not made.is_asleep
    made.end("a")
    made.look()
    assert made.is_asleep
    made.wait("b", "a")
    assert not made.is_asleep


def test_a_ring_is_drawn() -> None:
    ring = [
        WaitStep("n0", "first-1@c", "step", 7, "load", 1, is_alone=True),
        WaitStep("n1", "second-2@c", "load", 3, "step", 2, is_alone=True),
    ]
    assert format_cycle(ring) == (
        "deadlock: these actors wait for each other, and each handles one message at a time\n"
        "    first.step() on n0 waits for second.load()\n"
        "    second.load() on n1 waits for first.step()\n"
        "Do not wait inside one of these endpoints, or make it a @concurrent_endpoint."
    )
