"""Work on threads of its own: the caller gets its value, its error, or a TimeoutError."""

from __future__ import annotations

import threading

import pytest

from meshbook.runtime.threads import BackgroundThreads


def test_a_value_and_an_error_come_back() -> None:
    aside = BackgroundThreads("looking")
    assert aside.run(lambda: 6 * 7, within=10.0) == 42
    with pytest.raises(KeyError, match="nothing"):
        aside.run(lambda: {}["nothing"], within=10.0)


def test_what_hangs_keeps_its_thread_and_no_others() -> None:
    aside, end = BackgroundThreads("looking", most=2), threading.Event()
    with pytest.raises(TimeoutError, match="took longer"):
        aside.run(end.wait, within=0.01)
    assert aside.run(lambda: 1, within=10.0) == 1
    with pytest.raises(TimeoutError):
        aside.run(end.wait, within=0.01)
    with pytest.raises(TimeoutError, match="all threads for looking are busy"):
        aside.run(lambda: 1, within=10.0)
    end.set()
    hanging = [thread for thread in threading.enumerate() if thread.name == "meshbook looking"]
    for thread in hanging:
        thread.join()
    assert aside.run(lambda: 1, within=10.0) == 1


def test_a_thread_that_cannot_start_takes_no_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    aside = BackgroundThreads("looking", most=1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            aside.run(lambda: 1, within=10.0)
    assert aside.run(lambda: 1, within=10.0) == 1
