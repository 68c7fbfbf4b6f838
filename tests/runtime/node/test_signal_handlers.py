"""Handlers of signals raise in user code only; other code reports what they raise."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from meshbook.runtime.errors import PickleError
from meshbook.runtime.node.signal_handlers import SignalHandlers
from meshbook.runtime.wire import pickling

NUMBER = signal.SIGUSR1


# The code that serves actors: no frame of it belongs to the user.
serve: Any = eval(compile("lambda work: work()", os.__file__, "eval"))
send = functools.partial(signal.raise_signal, NUMBER)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    found: list[str] = []
    before = {number: signal.getsignal(number) for number in (NUMBER, signal.SIGINT)}
    for name in ("signal", "getsignal"):
        monkeypatch.setattr(signal, name, getattr(signal, name))
    handlers = SignalHandlers(serve.__code__)
    handlers.report = found.append
    handlers.install()
    yield found
    monkeypatch.undo()  # first: the present functions would guard these handlers
    for number, handler in before.items():
        signal.signal(number, handler)


def fail(number: int, frame: Any) -> None:
    raise ValueError(f"of signal {number}")


def test_a_handler_of_the_user_is_found_as_it_was_set(reports: list[str]) -> None:
    assert signal.signal(NUMBER, fail) == signal.SIG_DFL
    assert signal.getsignal(NUMBER) is fail
    assert signal.signal(NUMBER, signal.SIG_IGN) is fail
    assert signal.getsignal(NUMBER) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_user_code_gets_the_exception(reports: list[str]) -> None:
    signal.signal(NUMBER, fail)
    with pytest.raises(ValueError, match="of signal"):
        serve(lambda: send())
    with pytest.raises(KeyboardInterrupt):
        serve(lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(ValueError, match="of signal"):
        send()  # before and after the serving
    assert reports == []


def test_other_code_reports_it(reports: list[str]) -> None:
    signal.signal(NUMBER, fail)
    serve(send)
    (report,) = reports
    assert "SIGUSR1" in report
    assert "ValueError: of signal" in report
    signal.signal(NUMBER, signal.default_int_handler)
    serve(send)  # there is nothing to interrupt
    assert len(reports) == 1


class SignalsWhenPickled:
    def __reduce__(self) -> Any:
        send()
        return str, ()


def test_what_pickling_calls_is_no_user_code(reports: list[str]) -> None:
    """Unless user code sends a message: the exception leaves that."""
    signal.signal(NUMBER, fail)
    value = SignalsWhenPickled()
    serve(functools.partial(pickling.dumps, value, "a reply"))
    assert len(reports) == 1
    with pytest.raises(PickleError, match="of signal"):
        serve(lambda: pickling.dumps(value, "an argument"))
    assert len(reports) == 1


def test_a_signal_without_a_name_is_reported_by_its_number(reports: list[str]) -> None:
    number = signal.SIGRTMIN + 1
    signal.signal(number, fail)
    try:
        serve(functools.partial(signal.raise_signal, number))
    finally:
        signal.signal(number, signal.SIG_DFL)
    (report,) = reports
    assert f"signal {number}" in report


@pytest.mark.process
def test_a_forked_child_serves_nothing(reports: list[str]) -> None:
    signal.signal(NUMBER, fail)
    if (child := os.fork()) == 0:
        try:
            serve(send)
        except ValueError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
