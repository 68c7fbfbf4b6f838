"""Telling several who want to hear of something, each for itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)


def tell_all(listeners: Iterable[Callable[[T], object]], news: T) -> None:
    """Call each with the news. One that raises is logged: the others wait for it, and nobody says it again."""
    for listener in list(listeners):  # it may take itself out of them
        try:
            listener(news)
        except Exception:
            logger.exception("somebody could not be told of %s", news)
