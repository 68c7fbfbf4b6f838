"""Faults of a worker: an endpoint that raises, and deaths of every kind. Callers get the reason; the mesh heals."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from meshbook import ActorError, SupervisionError
from tests.support import AT_ONCE, PATIENCE, Probe, died, pids, still_running, wait_forever

TELLING = 0.1  # the promise: callers of a worker that dies get an error by then
pytestmark = [pytest.mark.process, pytest.mark.without_torch]


def lose_the_key() -> None:
    raise KeyError("lost") from ValueError("never had it")


def test_an_endpoint_that_raises(spawn_procs, faults):
    """Its caller gets the error with the remote traceback, the answers of the others with it; the actor lives on."""

    def lose_it_on_rank_1(pid: int) -> int:
        if os.getpid() == pid:
            lose_the_key()
        return os.getpid()

    probe = spawn_procs(3).spawn("probe", Probe)
    before = pids(probe)
    with pytest.raises(ActorError) as caught:
        probe.run.call(lose_it_on_rank_1, before[1]).get(PATIENCE)
    assert isinstance(caught.value.exception, KeyError)
    said = ["KeyError: 'lost'", "in lose_the_key", "ValueError: never had it", "gpus': 1/3"]
    assert [each for each in said if each not in str(caught.value)] == [], str(caught.value)
    assert list(caught.value.failures) == [1]
    assert sorted(caught.value.results.values()) == sorted((before[0], before[2]))
    assert pids(probe) == before
    assert faults.empty()


def test_a_killed_worker(spawn_procs):
    probe = spawn_procs(3).spawn("probe", Probe)

    def speak() -> None:
        print("through Python", file=sys.stderr)
        os.write(2, b"past Python\n")

    killed = psutil.Process(pids(probe)[1])
    probe.slice(gpus=1).run.call(speak).get(PATIENCE)
    waiting = probe.slice(gpus=1).run.call_one(wait_forever)
    gathered = probe.run.call(os.getpid)
    killed.kill()
    for future in (waiting, gathered):
        error = died(future)
        assert f"Killed(sig=9) (SIGKILL, {error.report.node}, pid {killed.pid})" in str(error)
        assert "Endpoint call probe.run() failed" in str(error)
        assert error.report.stderr == ("through Python", "past Python")
        assert "outside meshbook sent the signal" in str(error)
    late = probe.run.call_each(os.getpid)
    assert late[1].done()
    assert died(late[1]).report.pid == killed.pid


def test_the_other_ranks_answer(spawn_procs):
    probe = spawn_procs(3).spawn("probe", Probe)
    before = pids(probe)
    killed = probe.slice(gpus=1).run.call_one(os.kill, before[1], signal.SIGKILL)
    died(killed)
    others = probe.run.call_each(os.getpid)
    assert [others[rank].get(PATIENCE) for rank in (0, 2)] == [before[0], before[2]]


def test_a_worker_that_waits_for_another_is_notified_of_its_death(spawn_procs):
    def ask(other: Any) -> str:
        return type(other.run.call_one(wait_forever).exception(PATIENCE)).__name__

    probe = spawn_procs(2).spawn("probe", Probe)
    other = psutil.Process(pids(probe)[0])
    asking = probe.slice(gpus=1).run.call_one(ask, probe.slice(gpus=0))
    other.kill()
    assert asking.get(PATIENCE) == "ProcessDied"


def test_a_later_worker_is_notified_of_an_earlier_death(spawn_procs):
    """It got no notice, since it did not exist: of one that was killed, and of one that was stopped."""

    def ask(other: Any) -> str:
        return str(other.run.call_one(wait_forever).exception(PATIENCE))

    mesh = spawn_procs(2)
    probe = mesh.spawn("probe", Probe)
    killed = psutil.Process(pids(probe)[0])
    killed.kill()
    died(probe.slice(gpus=0).run.call_one(wait_forever))
    late = spawn_procs().spawn("late", Probe)
    assert f"pid {killed.pid}" in late.run.call_one(ask, probe.slice(gpus=0)).get(PATIENCE)
    mesh.stop().get(PATIENCE)
    later = spawn_procs().spawn("later", Probe)
    assert "stopped" in later.run.call_one(ask, probe.slice(gpus=1)).get(PATIENCE)


def segfault() -> None:
    import ctypes

    ctypes.string_at(0)


def fall_silent() -> None:
    os._exit(3)


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (segfault, ["SIGSEGV", "Segmentation fault(sig=11)", "Fatal Python error: Segmentation fault", "in segfault"]),
        (os.abort, ["SIGABRT", "Fatal Python error: Aborted", "in run"]),
        (fall_silent, ["exit code 3"]),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), ["SIGTERM"]),
    ],
    ids=["segmentation fault", "abort", "exit", "SIGTERM"],
)
@pytest.mark.parametrize("asked", [True, False], ids=["call", "broadcast"])
def test_a_worker_that_ends_itself(spawn_procs, faults, end: Callable[[], None], said: list[str], asked: bool):
    """Callers and owner get the same reason; then the mesh is healed."""
    mesh = spawn_procs(2)
    probe = mesh.spawn("probe", Probe)
    before = pids(probe)
    last = probe.slice(gpus=1)
    if not asked:
        last.run.broadcast(end)
    text = str(died(last.run.call_one(end if asked else wait_forever)))
    for told in (text, faults.get(timeout=PATIENCE).report(), str(died(probe.run.call(os.getpid)))):
        assert [each for each in said if each not in told] == [], told
    assert mesh.heal().get(PATIENCE) == [1]
    after = pids(probe)
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)


def test_callers_of_a_killed_worker_get_an_error_at_once(spawn_procs):
    """The best of three, since other processes of the machine may take their time in between."""
    mesh = spawn_procs(2)
    probe = mesh.spawn("probe", Probe)
    taken = []
    for _ in range(3):
        pid = pids(probe)[1]
        waiting = probe.slice(gpus=1).run.call_one(wait_forever)
        begun = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        died(waiting)
        taken.append(time.monotonic() - begun)
        mesh.heal().get(PATIENCE)
    assert min(taken) < TELLING, taken


def test_a_worker_that_ends_while_an_actor_is_made(spawn_procs):
    class Ends(Probe):
        def __init__(self) -> None:
            os._exit(7)

    probe = spawn_procs().spawn("ends", Ends)
    early = probe.run.call_one(os.getpid)
    assert [died(future).report.returncode for future in (probe.initialized, early)] == [7, 7]


def test_a_mesh_that_lost_a_worker_is_stopped(spawn_procs):
    mesh = spawn_procs(2)
    probe = mesh.spawn("probe", Probe)
    processes = [psutil.Process(pid) for pid in pids(probe)]
    processes[0].kill()
    died(probe.slice(gpus=0).run.call(wait_forever))
    mesh.stop().get(PATIENCE)
    assert still_running(processes) == []
    with pytest.raises(SupervisionError, match="stopped"):
        probe.slice(gpus=1).run.call_one(os.getpid).get(PATIENCE)


def test_a_worker_in_an_endless_loop_is_killed_in_time(spawn_procs, session):
    def loop_in_python() -> None:
        while True:
            pass

    def loop_in_c() -> None:
        import collections
        import itertools

        collections.deque(itertools.repeat(0), maxlen=0)  # never lets another thread of Python's run

    mesh = spawn_procs(2)
    probe = mesh.spawn("probe", Probe)
    processes = [psutil.Process(pid) for pid in pids(probe)]
    for rank, loop in enumerate((loop_in_python, loop_in_c)):
        probe.slice(gpus=rank).run.broadcast(loop)
    begun = time.monotonic()
    mesh.stop().get(PATIENCE)
    assert time.monotonic() - begun < session.settings.stop_timeout + AT_ONCE
    assert still_running(processes) == []


@pytest.mark.parametrize("lines", [1, 200_000])
def test_what_an_actor_writes_right_before_its_end_arrives_once_and_before_the_error(spawn_procs, heard, lines):
    def write(lines: int) -> None:
        for number in range(lines):
            print("line", number, flush=True)
        os.write(1, b"by C\n")
        os.kill(os.getpid(), signal.SIGKILL)

    died(spawn_procs().spawn("probe", Probe).run.call_one(write, lines))
    assert heard.text("stdout") == "".join(f"line {number}\n" for number in range(lines)) + "by C\n"


def replace_clocks() -> None:
    """What mocks of clocks do, at the worst."""
    import pickle

    def fail(*arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError("replaced")

    for name in ("monotonic", "monotonic_ns", "time", "time_ns", "perf_counter", "process_time", "sleep"):
        setattr(time, name, fail)
    pickle.dumps = pickle.loads = fail  # type: ignore[assignment]


def test_a_program_that_replaces_clocks_and_pickle_is_answered(spawn_procs, heard):
    def talk() -> list[str]:
        print("said", flush=True)
        return ["it", "is", "there"]

    probe = spawn_procs().spawn("probe", Probe)
    assert probe.run.call_one(replace_clocks).get(PATIENCE) is None
    assert probe.run.call_one(talk).get(PATIENCE) == ["it", "is", "there"]
    heard.wait_until(lambda: "said\n" in heard.text("stdout"))
    with pytest.raises(ActorError, match="KeyError"):
        probe.run.call_one(lose_the_key).get(PATIENCE)
    with pytest.raises(TimeoutError):
        probe.run.call_one(wait_forever).get(0.01)


class Leaving:
    """Unpickling it ends the process."""

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


class Unsent:
    """Pickling it ends the process."""

    def __reduce__(self) -> Any:
        sys.exit(3)


def test_an_exit_while_a_message_is_pickled_or_unpickled_is_an_error_and_ends_no_actor(spawn_procs):
    probe = spawn_procs().spawn("probe", Probe)
    with pytest.raises(ActorError, match="cannot be unpickled: SystemExit: 3"):
        probe.run.call_one(os.getpid, Leaving()).get(PATIENCE)
    with pytest.raises(ActorError, match="cannot be pickled: SystemExit: 3"):
        probe.run.call_one(Unsent).get(PATIENCE)
    assert probe.run.call_one(os.getpid).get(PATIENCE)


def close_all_later() -> None:
    """Close the descriptors of this process once no endpoint runs, and use their numbers for others."""

    def close() -> None:
        os.closerange(3, 256)
        for _ in range(200):
            os.open("/dev/null", os.O_RDWR)

    threading.Timer(0.01, close).start()


@pytest.mark.parametrize("close", [functools.partial(os.closerange, 3, 256), close_all_later], ids=["reply", "idle"])
def test_a_worker_whose_descriptors_were_closed_is_reported_and_healed(spawn_procs, faults, close):
    procs = spawn_procs(2)
    probe = procs.spawn("probe", Probe)
    first = probe.slice(gpus=0)
    with contextlib.suppress(SupervisionError):
        first.run.call_one(close).get(PATIENCE)
    assert "has closed descriptors" in str(died(first.run.call_one(wait_forever)))
    assert procs.heal().get(PATIENCE) == [0]
    assert first.run.call_one(abs, -1).get(PATIENCE) == 1


def test_a_worker_that_is_stopped_delays_no_reports_of_deaths(monkeypatch, request):
    """Its connection and its queue in the agent are full of reports that it does not read."""
    monkeypatch.setenv("MESHBOOK_HIGH_WATER_MARK", "2")
    monkeypatch.setenv("MESHBOOK_STDERR_LINES", "100")
    monkeypatch.setenv("MESHBOOK_PRELOAD", "")
    session = request.getfixturevalue("own_session")
    stopped = session.host.spawn_procs(per_host={"gpus": 1}).spawn("stopped", Probe)
    others = session.host.spawn_procs(per_host={"gpus": 24}).spawn("others", Probe)
    [pid] = pids(stopped)
    os.kill(pid, signal.SIGSTOP)

    def end() -> None:
        os.write(2, b"\n".join([b"x" * 390] * 40))
        os._exit(3)

    for rank in range(24):
        assert "exit code 3" in str(died(others.slice(gpus=rank).run.call_one(end)))
