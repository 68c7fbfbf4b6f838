"""Call listeners; an exception in one does not affect the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)


def notify_all(listeners: Iterable[Callable[[T], object]], event: T) -> None:
    """Call each listener with the event, as `notify` does."""
    for listener in list(listeners):  # a copy, since a listener may remove itself
        notify(listener, event)


def notify(listener: Callable[[T], object], event: T) -> None:
    """Call a listener with the event, and log an exception so that the caller can continue."""
    try:
        listener(event)
    except Exception:
        logger.exception("a listener raised for %s", event)
