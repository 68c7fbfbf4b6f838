"""The soak: a short one here, and whether it would see what it is looking for."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = [pytest.mark.process, pytest.mark.without_torch]


@pytest.fixture
def soak_messages(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("soak_messages")


@pytest.fixture
def soak(soak_messages: Any) -> Any:
    return importlib.import_module("soak")


@pytest.mark.long
def test_five_seconds_lose_nothing_and_leave_nothing(runtime_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    command = [sys.executable, str(BENCHMARKS / "soak.py"), "--seconds", "5", "--json", str(file)]
    env = os.environ | {"MESHBOOK_RUNTIME_DIR": str(runtime_dir)}
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    figures = json.loads(file.read_text())
    assert figures["messages received so far"]["rounds"][-1] > 1000
    assert figures["lost, reordered or wrong"]["rounds"] == [0] * 10
    assert file.with_suffix(".txt").read_text() == done.stdout


@pytest.mark.parametrize(
    ("numbers", "faults"),
    [
        ([0, 1, 2], []),
        ([0, 2], ["number 2 of s came when 1 was due"]),
        ([1, 0], ["number 1 of s came when 0 was due", "number 0 of s came when 2 was due"]),
        ([0, 0], ["number 0 of s came when 1 was due"]),
    ],
)
def test_a_receiver_sees_what_is_lost_reordered_or_doubled(
    soak_messages: Any, numbers: list[int], faults: list[str]
) -> None:
    inbox = soak_messages.Inbox()
    for number in numbers:
        inbox.receive("s", number)
        inbox.receive("other", inbox.received.get("other", 0))
    assert inbox.faults == faults


def test_each_receiver_has_numbers_of_its_own(soak_messages: Any) -> None:
    outbox = soak_messages.Outbox("s")
    written = [outbox.next_message(*to).numbers for to in (("a", [0, 1]), ("a", [1, 2]), ("b", [1]))]
    assert written == [{0: 0, 1: 0}, {1: 1, 2: 0}, {1: 0}]
    assert outbox.sent == {("a", 0): 1, ("a", 1): 2, ("a", 2): 1, ("b", 1): 1}


def test_a_last_letter_that_is_lost_is_missed(soak_messages: Any, soak: Any) -> None:
    outbox = soak_messages.Outbox("controller")
    outbox.next_message("a", [0, 1])
    first = soak_messages.Audit("a 0", 1, 0, {("a", 1): 2}, {"controller": 1})
    second = soak_messages.Audit("a 1", 2, 0, {}, {"controller": 1, "a 0": 2})
    assert soak.find_missing([first, second], outbox) == []
    second.received["a 0"] = 1
    outbox.next_message("a", [0])
    assert soak.find_missing([first, second], outbox) == [
        "a 0 got 1 of 2 messages of controller",
        "a 1 got 1 of 2 messages of a 0",
    ]


@pytest.mark.parametrize(
    ("now", "found"),
    [
        ({}, []),
        ({"memory": 30.0}, ["the agent grew from 10.0 to 30.0 MiB"]),
        ({"memory": 5.0, "descriptors": 3, "threads": 1}, []),
        ({"descriptors": 5}, ["the agent has 5 descriptors instead of 4"]),
        ({"threads": 3}, ["the agent has 3 threads instead of 2"]),
        ({"processes": 7}, ["there are 7 processes instead of 6"]),
        ({"files": 9}, ["there are 9 files in the run's folder instead of 8"]),
        ({"open_calls": 1}, ["1 calls wait for an answer"]),
    ],
)
def test_what_has_grown_is_named(soak: Any, now: dict[str, Any], found: list[str]) -> None:
    def measured(**changes: Any) -> Any:
        seen = {"memory": 10.0, "descriptors": 4, "threads": 2, "processes": 6, "files": 8, "open_calls": 0} | changes
        print_of_agent = soak.Footprint(*(seen.pop(name) for name in ("memory", "descriptors", "threads")))
        return soak.ResourceUse(footprints={"agent": print_of_agent}, messages=0, **seen)

    assert soak.find_growth(measured(**now), measured()) == found
