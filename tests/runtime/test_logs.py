"""Python's logging in a worker: printed to stderr, unless the user has handlers."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator

from meshbook.runtime.telemetry.logs import print_logs


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


def test_a_stderr_that_fails_is_no_error_of_whoever_logs() -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("disk full")

    with worker_logging(None), contextlib.redirect_stderr(Broken()):
        logging.getLogger("lib").error("nowhere")
