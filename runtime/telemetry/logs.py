"""Python's logging in a worker: what no handler of the user's takes is printed to stderr, like any other output."""

from __future__ import annotations

import logging
import sys


def print_logs(level: int | None) -> None:
    """Print what is logged, from the level on that the root logger has; `level` sets it, None leaves Python's.

    The root logger gets no handler: `logging.basicConfig` of the user's would do nothing then. Python's handler of last
    resort prints warnings at least, and no names.
    """
    logging.lastResort = _Printed()
    if level is not None:
        logging.getLogger().setLevel(level)


class _Printed(logging.Handler):
    """Writes each record as `basicConfig` would, to whatever stderr is then: a cell's may be another one."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(logging.BASIC_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)
