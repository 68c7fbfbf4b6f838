"""What workers print outside cells: shown by a script that wants it, as `ProcMesh.logging_option` says."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from meshbook import Actor, ProcMesh, endpoint, this_host, this_proc
from meshbook.runtime.actor.context import CURRENT
from meshbook.runtime.config import OVERRIDES, Settings
from meshbook.runtime.hosts.session import Session
from meshbook.runtime.telemetry.lines import CompleteLines, Shown
from tests.support import PATIENCE, Probe

pytestmark = [pytest.mark.process, pytest.mark.without_torch]

SCRIPT = """
import logging, os, sys
from meshbook import Actor, endpoint, this_host

class Talker(Actor):
    @endpoint
    def talk(self, rank):
        print("out of", rank)
        print("err of", rank, file=sys.stderr)
        self.logger.info("by the actor")
        self.logger.debug("too low")
        logging.getLogger("lib").info("by a library")
        os.write(1, b"by C\\n")

    @endpoint
    def say(self, text):
        print(text, end="")

talkers = this_host().spawn_procs(per_host={"gpus": 2}, name="the talkers").spawn("talkers", Talker)
for rank in range(2):
    talkers.slice(gpus=rank).talk.call_one(rank).get()
for number in range(1000):
    talkers.slice(gpus=1).say.broadcast(f"line {number}\\n")
talkers.slice(gpus=1).say.call_one("the end").get()
print("the script ends")
"""


def run(script: str, folder: Path, **environment: str) -> tuple[list[str], list[str]]:
    """The lines of a script's stdout and stderr."""
    file = folder / "script.py"
    file.write_text(script)
    env = os.environ | {"MESHBOOK_RUNTIME_DIR": str(folder)} | environment
    done = subprocess.run([sys.executable, str(file)], env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines()


@pytest.mark.parametrize("variable", ["MESHBOOK_ENABLE_LOG_FORWARDING", "MESHBOOK_SHOW_OUTPUT"])
def test_a_script_that_wants_none_shows_only_its_own_output(runtime_dir, variable):
    assert run(SCRIPT, runtime_dir, **{variable: "0"}) == (["the script ends"], [])


def test_a_script_shows_what_its_ranks_print(runtime_dir):
    """Whole lines, by rank; what they log from WARNING on, as Python does."""
    out, err = run(SCRIPT, runtime_dir)
    for rank in range(2):
        assert f"[the-talkers {rank}] out of {rank}" in out
        assert [line for line in err if line.startswith(f"[the-talkers {rank}]")] == [
            f"[the-talkers {rank}] err of {rank}"
        ]
    assert all(line.startswith("[the-talkers ") for line in out if line != "the script ends")


def test_a_script_still_shows_it_after_another_level_was_chosen(runtime_dir):
    script = (
        SCRIPT
        + """
import asyncio
asyncio.run(talkers_procs.logging_option(level=30))
talkers.slice(gpus=0).say.call_one("after all\\n").get()
"""
    )
    script = script.replace("talkers = this_host()", "talkers_procs = this_host()").replace(
        ').spawn("talkers", Talker)', ')\ntalkers = talkers_procs.spawn("talkers", Talker)'
    )
    assert "[the-talkers 0] after all" in run(script, runtime_dir)[0]


@pytest.mark.parametrize("variable", ["MESHBOOK_ENABLE_LOG_FORWARDING", "HYPERACTOR_MESH_ENABLE_LOG_FORWARDING"])
def test_a_script_that_wants_it_shows_what_its_ranks_print_and_log(runtime_dir, variable):
    out, err = run(SCRIPT, runtime_dir, **{variable: "1"})
    assert "the script ends" in out
    for rank in range(2):
        assert f"[the-talkers {rank}] out of {rank}" in out
        label = f"[the-talkers {rank}] "
        said, by_actor, by_library = (line.removeprefix(label) for line in err if line.startswith(label))
        assert said == f"err of {rank}"
        assert re.fullmatch(r"INFO:__main__:\[actor=<.*Talker.*>\] by the actor", by_actor)
        assert re.fullmatch(r"INFO:lib:\[actor=<.*Talker.*>\] by a library", by_library)
    lines = [line.removeprefix("[the-talkers 1] ") for line in out if line.startswith("[the-talkers 1] line")]
    assert lines == [f"line {number}" for number in range(1000)]
    # A descriptor's text comes by another way, perhaps into a line of Python's that has no end yet.
    assert any(line.startswith("[the-talkers 1] the end") for line in out)
    assert sum(line.endswith("by C") for line in out) == 2


# -- logging_option ------------------------------------------------------------------------


class Noted:
    """A screen that notes what it is shown."""

    def __init__(self) -> None:
        self.said: list[CompleteLines] = []
        self._changed = threading.Condition()

    def show(self, shown: Sequence[Shown]) -> None:
        with self._changed:
            self.said += [each for each in shown if isinstance(each, CompleteLines)]
            self._changed.notify_all()

    def wait_until(self, is_there: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(is_there, PATIENCE), self.said

    def lines(self) -> list[tuple[tuple[int, ...], str]]:
        """The ranks and the text of each line, in order of the ranks."""
        return sorted((said.ranks, line) for said in self.said for line in said.text.splitlines())


@pytest.fixture(scope="module")
def forwarding() -> Iterator[Session]:
    """A session that forwards; calls go out from it."""
    session = Session(Settings.from_environment(enable_log_forwarding=True))
    with calling_from(session):
        session.host.spawn_procs().initialized.get(PATIENCE)
    yield session
    session.close()


@contextlib.contextmanager
def calling_from(session: Session) -> Iterator[None]:
    token = CURRENT.set(session.context)
    yield
    CURRENT.reset(token)


@pytest.fixture
def noted(forwarding: Session) -> Iterator[Noted]:
    forwarding.forwarder.screen = noted = Noted()
    with calling_from(forwarding):
        yield noted


@pytest.fixture
def mesh(forwarding: Session, noted: Noted) -> Iterator[ProcMesh]:
    mesh = forwarding.host.spawn_procs(per_host={"gpus": 3}, name="m")
    yield mesh
    mesh.stop().get(PATIENCE)


def choose(mesh: ProcMesh, *arguments: Any, **keywords: Any) -> None:
    asyncio.run(asyncio.wait_for(mesh.logging_option(*arguments, **keywords), PATIENCE))


def test_what_is_shown_is_chosen_by_mesh_and_slice(forwarding, mesh, noted):
    probe = mesh.spawn("probe", Probe)
    probe.run.call(print, "before").get(PATIENCE)
    choose(mesh.slice(gpus=slice(1, 3)))
    probe.run.call(print, "some of").get(PATIENCE)
    choose(mesh)
    probe.run.call(print, "none of").get(PATIENCE)
    choose(mesh, stream_to_client=True)
    probe.run.call(print, "after").get(PATIENCE)
    noted.wait_until(lambda: sum(said.text == "after\n" for said in noted.said) == 3)
    assert noted.lines() == [
        ((0,), "after"),
        ((0,), "before"),
        ((0,), "some of"),
        ((1,), "after"),
        ((1,), "before"),
        ((2,), "after"),
        ((2,), "before"),
    ]
    assert forwarding.output.recent(mesh.name, 2) == "before\nsome of\nnone of\nafter\n"


def test_lines_that_are_alike_are_counted(mesh, noted):
    choose(mesh, stream_to_client=True, aggregate_window_sec=0.05)
    probe = mesh.spawn("probe", Probe)
    for rank in range(3):
        probe.slice(gpus=rank).run.call_one(print, f"rank {rank} is ready").get(PATIENCE)

    def count() -> int:
        found = [re.search(r"ready(?: \((\d) similar lines\))?$", said.text) for said in noted.said]
        return sum(int(each[1] or 1) for each in found if each is not None)

    noted.wait_until(lambda: count() == 3)
    assert {rank for said in noted.said for rank in said.ranks} == {0, 1, 2}


def test_the_level_of_logging_is_set(mesh, noted):
    probe = mesh.spawn("probe", Probe)

    def levels() -> list[int]:
        return list(probe.run.call(lambda: logging.getLogger().level).get(PATIENCE).values())

    assert levels() == [logging.INFO] * 3
    choose(mesh.slice(gpus=1), level=logging.ERROR)
    assert levels() == [logging.INFO, logging.ERROR, logging.INFO]
    choose(mesh)
    assert levels() == [logging.INFO] * 3


class Owner(Actor):
    """Has a mesh of its own, and wants to hear nothing of it."""

    @endpoint
    async def talk(self) -> str:
        mesh = this_host().spawn_procs(name="nested")
        probe = mesh.spawn("probe", Probe)
        await mesh.logging_option(stream_to_client=False)
        await probe.run.call_one(print, "hidden")
        await mesh.logging_option(stream_to_client=True)
        await probe.run.call_one(print, "shown")
        await mesh.stop()
        return mesh.name


def test_an_actor_chooses_for_the_mesh_that_it_spawned(mesh, noted):
    name = mesh.slice(gpus=0).spawn("owner", Owner).talk.call_one().get(PATIENCE)
    noted.wait_until(lambda: any(said.text == "shown\n" for said in noted.said))
    assert [(said.mesh, said.text) for said in noted.said] == [(name, "shown\n")]


@pytest.mark.parametrize("level", [-1, 256])
def test_a_level_that_cannot_be(mesh, level):
    with pytest.raises(ValueError, match=f"Invalid logging level {level}"):
        choose(mesh, level=level)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stream_to_client": True, "aggregate_window_sec": 0}, "must be a positive number of seconds"),
        ({"stream_to_client": True, "aggregate_window_sec": float("nan")}, "must be a positive number of seconds"),
        ({"aggregate_window_sec": 3}, "requires stream_to_client=True"),
    ],
)
def test_a_window_that_cannot_be(mesh, options, said):
    with pytest.raises(ValueError, match=said):
        choose(mesh, **options)


def test_where_nothing_is_forwarded_asking_for_it_warns(spawn_procs):
    mesh = spawn_procs()
    assert not mesh.host_mesh.stream_logs
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose(mesh, level=logging.DEBUG)
    with pytest.warns(UserWarning, match="no effect: MESHBOOK_ENABLE_LOG_FORWARDING was off"):
        choose(mesh, stream_to_client=True)


def test_a_mesh_keeps_what_held_when_it_was_spawned(session, spawn_procs):
    noted = session.forwarder.screen = Noted()
    with OVERRIDES.during({"enable_log_forwarding": True}):
        assert session.host.stream_logs
        shown = spawn_procs(2)
    with OVERRIDES.during({"show_output": False}):
        hidden = spawn_procs(2)
    for mesh in (hidden, shown):
        mesh.spawn("probe", Probe).run.call(print, "printed").get(PATIENCE)
    for mesh in (hidden, shown):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            choose(cloudpickle.loads(cloudpickle.dumps(mesh.slice(gpus=1))), stream_to_client=True)
        assert len(caught) == (mesh is hidden)
    session.forwarder.flush()
    assert {said.mesh for said in noted.said} == {shown.name}


def test_a_client_has_a_level_of_its_own(session):
    root = logging.getLogger()
    level = root.level
    try:
        choose(this_proc(), level=logging.CRITICAL)
        assert root.level == logging.CRITICAL
    finally:
        root.setLevel(level)


def test_hosts_say_whether_logs_are_forwarded(forwarding, noted):
    assert forwarding.host.stream_logs
