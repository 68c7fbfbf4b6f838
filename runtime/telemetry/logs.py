"""Python's logging: in an actor each message names it, and in a worker what no handler takes is printed to stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from meshbook.runtime.actor.context import CURRENT, spawner_of

OURS = "meshbook."


def print_logs(level: int | None) -> None:
    """Print what is logged, from the level on that the root logger has; `level` sets it, None leaves Python's.

    The root logger gets no handler: `logging.basicConfig` of the user's would do nothing then. Python's handler of last
    resort prints warnings at least, and no names.
    """
    logging.lastResort = _Printed()
    if level is not None:
        logging.getLogger().setLevel(level)


class Prefix:
    """Whether a message that an actor logs begins with `[actor=...]`. Process-wide, as logging is."""

    is_on = True
    _before: Callable[..., logging.LogRecord] | None = None  # the record factory, once ours is in its place

    @classmethod
    def install(cls) -> None:
        """Name the actor in what is logged from now on; a second call changes nothing."""
        if cls._before is None:
            cls._before = logging.getLogRecordFactory()
            logging.setLogRecordFactory(cls._make)

    @classmethod
    def _make(cls, *args: Any, **kwargs: Any) -> logging.LogRecord:
        assert cls._before is not None
        record = cls._before(*args, **kwargs)
        here = CURRENT.get() if cls.is_on else None
        # An empty message carries its data in attributes: torch.compile logs like that, and formats it itself.
        if here is not None and record.msg and not record.name.startswith(OURS):
            instance = here.actor_instance
            if spawner_of(instance.key) and not instance.class_name.startswith(OURS):
                prefix = f"[actor={instance}] "
                record.msg = f"{prefix.replace('%', '%%') if record.args else prefix}{record.msg}"
        return record


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
