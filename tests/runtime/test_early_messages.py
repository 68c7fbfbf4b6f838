"""Messages for actors that are not here yet: which may still come, and what becomes of what was kept."""

from __future__ import annotations

from typing import Any

import pytest

from meshbook.runtime.node.actors import SLACK, EarlyMessages
from meshbook.runtime.wire.messages import Call, Stop


def call(number: int, key: str) -> Call:
    return Call("asker", number, key, "run", (0, (), ()), "")


def kept(early: EarlyMessages, key: str, *numbers: int) -> list[Any]:
    """Keep calls of these numbers for an actor; as `arrived` gives them."""
    messages = [(call(number, key), (b"%d" % number,)) for number in numbers]
    for message, body in messages:
        early.keep(key, message, body)
    return messages


HIGH = SLACK + 100


@pytest.mark.parametrize(
    ("arrived", "key", "may_come"),
    [
        ([], "probe-0@owner", True),
        ([], "probe-7@owner", True),
        (["probe-3@owner"], "probe-4@owner", True),
        ([f"probe-{HIGH}@owner"], f"probe-{HIGH + 1}@owner", True),
        # Threads of one spawner take their numbers in one order and send in another.
        ([f"probe-{HIGH}@owner"], f"probe-{HIGH - SLACK + 1}@owner", True),
        ([f"probe-{HIGH}@owner"], f"probe-{HIGH - SLACK}@owner", False),
        ([f"probe-{HIGH}@owner"], "probe-0@owner", False),
        # The highest counts, not the last.
        ([f"probe-{HIGH}@owner", "probe-60@owner"], "probe-1@owner", False),
        # What another has spawned says nothing.
        ([f"probe-{HIGH}@other"], "probe-0@owner", True),
        # The name is the user's.
        ([f"a-b@c-{HIGH}@owner"], "a-b@c-0@owner", False),
        (["a-b@c-3@owner"], "a-b@c-4@owner", True),
        # Actors of the runtime were not spawned.
        ([], "process", False),
        ([], "probe-7", False),
        ([], "probe@owner", False),
    ],
)
def test_whether_an_actor_may_still_come(arrived: list[str], key: str, may_come: bool) -> None:
    early = EarlyMessages()
    for each in arrived:
        early.arrived(each)
    assert early.is_early(key) is may_come


def test_what_came_early_is_given_out_once_and_in_order() -> None:
    early = EarlyMessages()
    messages = kept(early, "probe-3@owner", 1, 2, 3)
    kept(early, "probe-4@owner", 4)
    assert early.arrived("probe-3@owner") == messages
    assert early.arrived("probe-3@owner") == []


def test_nothing_came_for_most_actors() -> None:
    assert EarlyMessages().arrived("probe-3@owner") == []


def test_a_stop_is_kept_among_the_others() -> None:
    early, key = EarlyMessages(), "probe-3@owner"
    [first] = kept(early, key, 1)
    stop = Stop("asker", 2, key, "enough"), ()
    early.keep(key, *stop)
    assert early.arrived(key) == [first, stop]


def test_messages_that_wait_for_a_lost_spawner_fail() -> None:
    """For all of its actors, and for no others."""
    early = EarlyMessages()
    gone = kept(early, "probe-3@owner", 1, 2) + kept(early, "trainer-4@owner", 3)
    others = kept(early, "probe-3@other", 4)
    assert early.drop_spawner("owner") == gone
    assert early.drop_spawner("owner") == []
    assert early.arrived("probe-3@owner") == []
    assert early.arrived("probe-3@other") == others


def still_expected(early: EarlyMessages, spawner: str, numbers: range) -> list[int]:
    return [number for number in numbers if early.is_early(f"probe-{number}@{spawner}")]


@pytest.mark.parametrize("before", [[], [3], [HIGH], [1000 + HIGH]])
def test_a_spawner_that_begins_anew_counts_from_there(before: list[int]) -> None:
    """Whatever it had sent before; what was kept for its former actors may yet be asked for."""
    early = EarlyMessages()
    for number in before:
        early.arrived(f"probe-{number}@owner")
    kept(early, "probe-7@owner", 1)
    early.expect("owner", 1000)
    assert still_expected(early, "owner", range(990, 1005)) == [1000, 1001, 1002, 1003, 1004]
    assert still_expected(early, "other", range(3)) == [0, 1, 2]
    assert early.arrived("probe-7@owner")


@pytest.mark.parametrize("highest", [-1, 3, 10, 12])
def test_what_a_spawner_has_not_sent_by_now_is_closed(highest: int) -> None:
    """Up to the number that it says; what comes for those that are numbered higher is kept as before."""
    early = EarlyMessages()
    if highest >= 0:
        early.arrived(f"probe-{highest}@owner")
    closed = kept(early, "probe-2@owner", 1, 2) + kept(early, "probe-10@owner", 3)
    later, others = kept(early, "probe-11@owner", 4), kept(early, "probe-2@other", 5)
    assert early.close("owner", 10) == closed
    assert early.close("owner", 10) == []
    assert still_expected(early, "owner", range(9, 14)) == [11, 12, 13]
    assert early.arrived("probe-11@owner") == later
    assert early.arrived("probe-2@other") == others
