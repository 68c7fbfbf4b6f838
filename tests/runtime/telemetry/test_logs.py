"""Python's logging in a worker: printed to stderr, unless the user has handlers."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meshbook.runtime.actor.base import Actor
from meshbook.runtime.actor.endpoint import endpoint
from meshbook.runtime.telemetry.logs import Prefix, print_logs


@contextlib.contextmanager
def worker_logging(level: int | None) -> Iterator[io.StringIO]:
    """Logging as in a worker that has just begun, and its stderr; then again what the tests themselves log with."""
    root, last = logging.getLogger(), logging.lastResort
    handlers, level_before = root.handlers[:], root.level
    root.handlers[:] = []
    root.setLevel(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            print_logs(level)
            yield stderr
    finally:
        logging.lastResort = last
        root.handlers[:] = handlers
        root.setLevel(level_before)


def test_what_is_logged_is_printed_with_level_and_name() -> None:
    with worker_logging(logging.INFO) as stderr:
        logging.getLogger("lib.part").info("loaded %d", 3)
        logging.getLogger("lib.part").debug("not that")
    assert stderr.getvalue() == "INFO:lib.part:loaded 3\n"


def test_without_a_level_pythons_own_holds() -> None:
    with worker_logging(None) as stderr:
        logging.getLogger("lib").info("not that")
        logging.getLogger("lib").warning("but that")
    assert stderr.getvalue() == "WARNING:lib:but that\n"


def test_stderr_is_looked_up_when_something_is_logged() -> None:
    with worker_logging(None) as first, contextlib.redirect_stderr(io.StringIO()) as second:
        logging.getLogger("lib").error("there")
    assert (first.getvalue(), second.getvalue()) == ("", "ERROR:lib:there\n")


def test_the_users_own_configuration_wins() -> None:
    with worker_logging(logging.INFO) as stderr:
        logging.basicConfig(level=logging.ERROR, format="mine: %(message)s")
        logging.getLogger("lib").warning("not that")
        logging.getLogger("lib").error("that")
    assert stderr.getvalue() == "mine: that\n"


class Told(Actor):
    @endpoint
    def tell(self, message: Any, *arguments: Any, name: str = "") -> None:
        logging.getLogger(name).warning(message, *arguments)


@pytest.fixture
def told(session: Any, caplog: pytest.LogCaptureFixture) -> Iterator[Callable[..., list[str]]]:
    """What an actor logs, as handlers see it."""
    Prefix.install()
    actor = session.spawn_counted_as("told", Told)

    def tell(*message: Any, **options: Any) -> list[str]:
        actor.tell.call_one(*message, **options).get(10)
        return [record.getMessage() for record in caplog.records]

    yield tell
    Prefix.is_on = True


@pytest.mark.parametrize("name", ["", "of.mine"])
def test_what_an_actor_logs_names_it(told: Any, name: str) -> None:
    (message,) = told("%d %% done", 5, name=name)
    assert message.startswith("[actor=<root>.<")
    assert message.endswith(".Told told>] 5 % done")


def test_an_empty_message_stays_empty(told: Any) -> None:
    """torch.compile logs data in attributes of such records."""
    assert told("") == [""]


def test_the_prefix_is_switched_off(told: Any) -> None:
    Prefix.is_on = False
    assert told("by the actor") == ["by the actor"]


def test_what_no_actor_logs_has_no_prefix(session: Any, caplog: pytest.LogCaptureFixture) -> None:
    Prefix.install()
    logging.getLogger("lib").warning("by a client")
    assert caplog.messages == ["by a client"]


def test_a_failing_stderr_raises_no_error_in_logging_code() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("disk full")

    with worker_logging(None), contextlib.redirect_stderr(Broken()):
        logging.getLogger("lib").error("nowhere")
