"""Python's logging: messages of an actor carry its name, and a worker prints unhandled messages to stderr."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from meshbook.runtime.actor.context import CURRENT, spawner_of

OURS = "meshbook."


def print_logs(level: int | None) -> None:
    """Print logged messages, from the root logger's level on; `level` sets that level, None keeps Python's.

    The root logger gets no handler, since the user's `logging.basicConfig` would then do nothing. Python's handler of
    last resort prints only warnings and above, and no names.
    """
    logging.lastResort = _Printed()
    if level is not None:
        logging.getLogger().setLevel(level)


class Prefix:
    """The switch for the prefix `[actor=...]` of messages that an actor logs. Process-wide, as logging is."""

    is_on = True
    _before: Callable[..., logging.LogRecord] | None = None  # the original record factory, once ours is installed

    @classmethod
    def install(cls) -> None:
        """Add the actor to messages from now on; a second call changes nothing."""
        if cls._before is None:
            cls._before = logging.getLogRecordFactory()
            logging.setLogRecordFactory(cls._make)

    @classmethod
    def _make(cls, *args: Any, **kwargs: Any) -> logging.LogRecord:
        assert cls._before is not None
        record = cls._before(*args, **kwargs)
        here = CURRENT.get() if cls.is_on else None
        # An empty message carries its data in attributes: torch.compile logs this way, and formats it itself.
        if here is not None and record.msg and not record.name.startswith(OURS):
            instance = here.actor_instance
            if spawner_of(instance.key) and not instance.class_name.startswith(OURS):
                prefix = f"[actor={instance}] "
                record.msg = f"{prefix.replace('%', '%%') if record.args else prefix}{record.msg}"
        return record


class _Printed(logging.Handler):
    """A handler that formats as `basicConfig` does, and writes to the current `sys.stderr`: a cell's may differ."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(logging.BASIC_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{self.format(record)}\n")
        except Exception:
            self.handleError(record)
