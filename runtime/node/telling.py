"""Telling several who want to hear of something, each for itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)


def tell_all(listeners: Iterable[Callable[[T], object]], news: T) -> None:
    """Call each with the news, as `tell` does."""
    for listener in list(listeners):  # it may take itself out of them
        tell(listener, news)


def tell(listener: Callable[[T], object], news: T) -> None:
    """Call it with the news. What it raises is logged."""
    try:
        listener(news)
    except Exception:  # others wait for what comes after it, and nobody says it again
        logger.exception("somebody could not be told of %s", news)
