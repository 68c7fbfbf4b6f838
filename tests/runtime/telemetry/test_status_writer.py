"""The page of a process: what is written is read, also while it is written; and steps of training are timed."""

from __future__ import annotations

import errno
import os
import struct
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from meshbook.runtime.hosts.heartbeat import Heartbeat
from meshbook.runtime.telemetry import status_page as pages
from meshbook.runtime.telemetry import status_writer as signs_module
from meshbook.runtime.telemetry.status_page import (
    SIZE,
    TEXT_BYTES,
    StatusPage,
    StatusPageReader,
    activity_of,
    encode_report,
    page_file,
)
from meshbook.runtime.telemetry.status_writer import StatusWriter, watch_steps
from meshbook.runtime.telemetry.vitals import Activity, ProcessReport, decode_process_report
from tests.support import PATIENCE, open_files

WORDS = ProcessReport(42, (("trainer", 3, "step"), ("cells", 1, "")), "all_reduce", "in input()")


@pytest.fixture
def status(tmp_path: Path) -> StatusWriter:
    made = StatusWriter()
    assert made.open(tmp_path, "m.0", 2)
    return made


@pytest.fixture
def reader(tmp_path: Path) -> StatusPageReader:
    return StatusPageReader(tmp_path)


def test_what_is_written_is_read(status: StatusWriter, reader: StatusPageReader) -> None:
    status.step(0.25)
    status.cell(True)
    status.tick(WORDS, (1, 2, 30, 40))
    reading = reader.read("m.0", 2)
    assert reading is not None
    assert (reading.step, reading.queued, reading.traffic) == (0.25, 4, (1, 2, 30, 40))
    assert reading.tick > 0
    assert reading.activity == Activity.RUNNING
    assert decode_process_report(reading.words or b"") == WORDS


@pytest.mark.parametrize(
    ("running", "collectives", "pauses", "activity"),
    [
        (0, 0, 0, Activity.IDLE),
        (1, 0, 0, Activity.RUNNING),
        (1, 2, 0, Activity.IN_COLLECTIVE),
        (0, 1, 0, Activity.IN_COLLECTIVE),
        (1, 1, 1, Activity.PAUSED),
    ],
)
def test_what_counts_most_is_what_it_is_at(running: int, collectives: int, pauses: int, activity: Activity) -> None:
    assert activity_of(running, collectives, pauses) == activity


def test_a_pause_is_written_at_once(status: StatusWriter, reader: StatusPageReader) -> None:
    told: list[str] = []
    status.when_changed = lambda: told.append(status.pause)
    status.paused("in the debugger")
    reading = reader.read("m.0", 2)
    assert reading is not None
    assert reading.activity == Activity.PAUSED
    status.paused("")
    assert told == ["in the debugger", ""]


def test_text_that_is_torn_is_not_read(status: StatusWriter, reader: StatusPageReader, tmp_path: Path) -> None:
    status.tick(WORDS, (0, 0, 0, 0))
    with page_file(tmp_path, "m.0").open("r+b") as file:
        file.seek(SIZE - TEXT_BYTES)
        file.write(b"?")
    reading = reader.read("m.0", 2)
    assert reading is not None
    assert (reading.words, reading.queued) == (None, 4)
    status.tick(WORDS, (0, 0, 0, 0))
    assert (reader.read("m.0", 2) or reading).words is not None


def test_a_length_that_is_torn_is_no_error(status: StatusWriter, reader: StatusPageReader, tmp_path: Path) -> None:
    for length in (-5, 1 << 40):
        status.tick(WORDS, (0, 0, 0, 0))
        with page_file(tmp_path, "m.0").open("r+b") as file:
            file.seek(8 * pages.LENGTH)
            file.write(struct.pack("=q", length))
        reading = reader.read("m.0", 2)
        assert reading is not None
        assert reading.words is None


def test_of_too_many_actors_the_busiest_are_written() -> None:
    actors = [(f"actor number {number} with a long name", number, "") for number in range(1000)]
    actors[7] = ("busy", 0, "step")
    said = encode_report(ProcessReport(42, tuple(actors), "barrier", "in input()"))
    assert len(said) <= TEXT_BYTES
    words = decode_process_report(said)
    assert (words.pid, words.collective, words.pause) == (42, "barrier", "in input()")
    assert [actor[1] for actor in words.actors[:3]] == [0, 999, 998]
    assert len(words.actors) > 30


def test_words_that_never_fit_leave_the_process_known() -> None:
    report = encode_report(ProcessReport(42, collective="x" * SIZE))
    assert decode_process_report(report) == ProcessReport(42)


def test_another_incarnation_has_a_page_of_its_own(
    status: StatusWriter, reader: StatusPageReader, tmp_path: Path
) -> None:
    status.tick(WORDS, (0, 0, 0, 0))
    assert reader.read("m.0", 2) is not None
    assert reader.read("m.0", 3) is None  # it is that of the one before
    after = StatusWriter()
    after.open(tmp_path, "m.0", 3)
    reading = reader.read("m.0", 3)
    assert reading is not None
    assert reading.tick == 0
    before = len(open_files(tmp_path))
    reader.keep({("m.0", 3)})
    assert len(open_files(tmp_path)) == before - 1
    reader.close()


def test_without_room_for_a_status_page_nothing_is_written(
    reader: StatusPageReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", no_room)
    status = StatusWriter()
    assert not status.open(tmp_path, "m.0", 0)
    status.cell(True)
    status.tick(WORDS, (0, 0, 0, 0))
    with pytest.raises(OSError, match=r"m\.0 has no status page"):
        reader.read("m.0", 0)
    assert not StatusPage().open(tmp_path / "gone", "m.0", 0)
    assert reader.read("m.1", 0) is None


def test_a_child_that_was_forked_writes_no_signs(status: StatusWriter, reader: StatusPageReader) -> None:
    status.close()
    status.cell(True)
    reading = reader.read("m.0", 2)
    assert reading is not None
    assert reading.activity == Activity.IDLE


class FakeOptimizers(types.ModuleType):
    """What of torch's optimizers is used: one hook after every step."""

    def register_optimizer_step_post_hook(self, hook: Any) -> None:
        self.hook = hook


class Optimizer:
    """One that can be kept weakly."""


def test_a_step_is_the_time_between_two_of_one_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noted(StatusWriter):
        def step(self, seconds: float) -> None:
            noted.append(round(seconds, 3))

    noted: list[float] = []
    now, origin = [100.0], ["cell 1"]
    optimizers = FakeOptimizers(signs_module.OPTIMIZER)
    torch = types.SimpleNamespace(compiler=types.SimpleNamespace(is_compiling=lambda: False))
    monkeypatch.setitem(sys.modules, signs_module.OPTIMIZER, optimizers)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(signs_module, "current_origin", lambda: origin[0])
    assert watch_steps(Noted(clock=lambda: now[0]))
    generator, critic = Optimizer(), Optimizer()
    for pause in (0.0, 0.5, 0.25):
        now[0] += pause
        optimizers.hook(generator, (), {})
        optimizers.hook(critic, (), {})
    assert noted == [0.5, 0.5, 0.25, 0.25]
    now[0], origin[0] = 900.0, "cell 2"  # what is between two cells is no step
    optimizers.hook(generator, (), {})
    assert len(noted) == 4


def test_without_torch_no_step_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, signs_module.OPTIMIZER, raising=False)
    assert not watch_steps(StatusWriter())


class Talkative:
    """As much of a node as a heartbeat needs, whose actors cannot be described."""

    def __init__(self) -> None:
        self.status = StatusWriter()
        self.recorder = types.SimpleNamespace(open={})
        self.address = types.SimpleNamespace(node="m.0")
        self.capture = None
        self.loop = types.SimpleNamespace(has_lost_descriptors=lambda: False)

    def loads(self) -> list[tuple[str, int, str]]:
        return [("a name that is no text \udc80", 0, "")]

    def traffic(self) -> tuple[int, int, int, int]:
        return (1, 2, 3, 4)


def test_a_process_without_a_known_activity_is_alive(
    reader: StatusPageReader, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node: Any = Talkative()
    heart = Heartbeat(node, tmp_path, 0)
    reading = reader.read("m.0", 0)
    heart.close()
    assert reading is not None
    assert reading.tick > 0
    assert reading.traffic == (1, 2, 3, 4)
    assert decode_process_report(reading.words or b"") == ProcessReport(os.getpid())
    assert "m.0 cannot write its status" in caplog.text


class CaptureWithClosedFiles:
    """As much of a capture as a heartbeat needs, after code of the user has closed all descriptors."""

    def __init__(self) -> None:
        self.polls = threading.Semaphore(0)

    def poll(self, *, is_idle: bool) -> None:
        self.polls.release()
        raise OSError(errno.EBADF, "Bad file descriptor")


def test_a_process_whose_files_were_closed_is_alive(tmp_path: Path) -> None:
    node: Any = Talkative()
    node.capture = CaptureWithClosedFiles()
    heart = Heartbeat(node, tmp_path, 0)
    for _ in range(2):
        assert node.capture.polls.acquire(timeout=PATIENCE)
        node.status.when_changed()
    heart.close()
