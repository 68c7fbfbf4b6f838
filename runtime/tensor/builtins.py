"""Remote functions for messages and logging on the ranks of the active mesh."""

from __future__ import annotations

import logging
from typing import Any

from meshbook.runtime.tensor.remote import remote


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _log(message: str, *args: Any, level: int = logging.WARNING) -> None:
    logging.getLogger("meshbook.ranks").log(level, message, *args)


def _set_logging_level(level: int) -> None:
    logging.getLogger().setLevel(level)


log_remote = remote(_log, propagate=_nothing)
set_logging_level_remote = remote(_set_logging_level, propagate=_nothing)
